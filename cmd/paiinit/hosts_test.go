package main

import "github.com/paiinit/paiinit/rendezvous"

func members(hosts ...string) []rendezvous.Member {
	var out []rendezvous.Member
	for i, h := range hosts {
		m := rendezvous.Member{Alias: "worker-" + string(rune('0'+i))}
		m.Host, m.Rank = h, i
		out = append(out, m)
	}
	return out
}
