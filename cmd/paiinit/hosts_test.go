package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/rendezvous"
)

func members(hosts ...string) []rendezvous.Member {
	var out []rendezvous.Member
	for i, h := range hosts {
		m := rendezvous.Member{Alias: "worker-" + string(rune('0'+i))}
		m.Host, m.Rank = h, i
		out = append(out, m)
	}
	return out
}

func TestCommandOf(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"paiinit"}, "run"},
		{[]string{"paiinit", "env"}, "env"},
		{[]string{"paiinit", "--", "env"}, "run"},
		{[]string{"paiinit", "--role", "worker"}, "run"},
		{[]string{"paiinit", "mpirun"}, "run"},
		{[]string{"paiinit", "-h"}, "help"},
		{[]string{"paiinit", "--version"}, "version"},
	} {
		require.Equal(t, tt.want, commandOf(tt.args), "%q", tt.args)
	}
}
