package envspec

import (
	"cmp"
	"net/netip"
	"path"
	"slices"
	"strings"
	"sync"
)

// readPeers reads PAIINIT_PEERS, which replaces the scheduler's peers. The role and index in job are what is already
// known about this container.
func readPeers(r *reader, job *Job) {
	v, _ := r.get("PAIINIT_PEERS")
	r.note("peers", v)
	r.note("size", v)
	job.Roles, job.Peers, job.Seeds = []Role{}, []Peer{}, []Seed{}
	r.forgetPeers()
	delete(r.sources, "seeds")
	if strings.HasPrefix(v.value, "dns:") {
		readDNSPeers(r, job, v)
		return
	}
	if name, ok := strings.CutPrefix(v.value, "@"); ok {
		v.value, v.file = readPeerFile(r, v, name), name
		r.note("peers", v)
		r.note("size", v)
	}
	readPeerList(r, job, v)
	rankRoles(r, job)
	locate(r, job, v)
}

// readPeerFile reads a peer list with one container per line. "#" starts a comment.
func readPeerFile(r *reader, v variable, name string) string {
	if !path.IsAbs(name) {
		panic(r.wrong(v, "", "the path must be absolute"))
	}
	text, ok := r.file(path.Clean(name))
	if !ok {
		panic(r.wrong(v, "", "cannot read %s", quote(name)))
	}
	var list []string
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		if line = clean(line); line != "" {
			list = append(list, line)
		}
	}
	if len(list) == 0 {
		panic(r.wrong(v, "", "%s names no containers", quote(name)))
	}
	return strings.Join(list, ",")
}

// readPeerList reads host[:port] or role-index=host[:port], separated by commas. Without names, the order gives the
// ranks.
func readPeerList(r *reader, job *Job, v variable) {
	list := r.items(v, ",")
	port, _, _ := r.port()
	port = cmp.Or(port, defaultPort)
	taken := make(map[peerKey]bool)
	count := make(map[string]int)
	for i, item := range list {
		name, place, named := strings.Cut(item, "=")
		if i > 0 && named != strings.Contains(list[0], "=") {
			panic(r.wrong(v, "", "%s and %s: give all containers a name or none", quote(list[0]), quote(item)))
		}
		p := Peer{Role: defaultRole, Index: i}
		if named {
			role, index, ok := splitAlias(clean(name))
			if !ok {
				panic(r.wrong(v, "", "%s is not role-index", quote(name)))
			}
			p.Role, p.Index = role, index
		} else {
			place = item
		}
		hp := r.place(v, clean(place))
		p.Host, p.Port = hp.host, cmp.Or(hp.port, port)
		key := peerKey{p.Role, p.Index}
		if taken[key] {
			panic(r.wrong(v, "", "%s occurs twice", alias(p.Role, p.Index)))
		}
		taken[key] = true
		r.origin[key] = v
		if count[p.Role] == 0 {
			job.Roles = append(job.Roles, Role{Name: p.Role})
		}
		count[p.Role]++
		job.Peers = append(job.Peers, p)
	}
	for i, role := range job.Roles {
		job.Roles[i].Count = count[role.Name]
		r.counts[role.Name] = v
		for index := range count[role.Name] {
			if !taken[peerKey{role.Name, index}] {
				panic(r.wrong(v, "number every role from 0", "%s is missing", alias(role.Name, index)))
			}
		}
	}
}

// locate finds this container among job.Peers by rank, by role and index, or by name and address.
func locate(r *reader, job *Job, v variable) {
	plain := !strings.Contains(v.value, "=")
	role, isRole := r.get("PAIINIT_ROLE")
	if isRole && !slices.Contains(roleNames(job.Roles), role.value) {
		advice := ""
		if plain {
			advice = "name the containers in it, as in " + quote(alias(role.value, 0)+"="+job.Peers[0].Host)
		}
		panic(r.notOneOf(role, job.Roles, v, advice))
	}
	index, indexVar, isIndex := r.number(0, maxTasks, "PAIINIT_INDEX")
	rank, rankVar, isRank := r.number(0, maxTasks, "PAIINIT_RANK")
	given := slices.DeleteFunc(slices.Clone(job.Peers), func(p Peer) bool {
		return isRole && p.Role != role.value || isIndex && p.Index != index || isRank && p.Rank != rank
	})
	if len(given) == 0 {
		var asked []string
		var wrong variable
		for _, x := range []variable{role, rankVar, indexVar} {
			if x.name != "" {
				asked = append(asked, x.name+"="+quotePlain(x.value))
				wrong = x
			}
		}
		panic(r.fail(wrong, "", "no container of %s (%d) has %s", v.name, len(job.Peers), strings.Join(asked, " and ")))
	}
	if (isRole || isIndex || isRank) && len(given) == 1 {
		if isIndex {
			v = indexVar
		} else if isRank {
			v = rankVar
		}
		becomeSelf(r, job, given[0], v)
		return
	}
	// The scheduler's role and index count only if the list has names.
	known := func(p Peer) bool { return p.Role == job.Role && p.Index == job.Index }
	if !plain && job.Index >= 0 && slices.ContainsFunc(job.Peers, known) {
		return
	}
	found := peersHere(r, given)
	switch len(found) {
	case 0:
		panic(r.wrong(v, "set PAIINIT_RANK", "none of this container's names and addresses (%s) is in it", r.whoAmI()))
	case 1:
		becomeSelf(r, job, found[0], v)
		return
	}
	a, b := found[0].Alias, found[1].Alias
	panic(r.wrong(v, "set PAIINIT_RANK or PAIINIT_PORT", "%s and %s are both this container (%s)", a, b, r.whoAmI()))
}

func becomeSelf(r *reader, job *Job, p Peer, from variable) {
	job.Role, job.Index = p.Role, p.Index
	r.note("index", from)
	if !r.has("PAIINIT_ROLE") {
		r.sources["role"] = r.sources["peers"]
	}
}

// peersHere returns the peers with this container's name or addresses and, if there is an explicit port, with that
// port. It asks DNS only if nothing else matches.
func peersHere(r *reader, peers []Peer) []Peer {
	port, portVar, isPort := r.port()
	own := make([]bool, len(peers))
	for i, p := range peers {
		own[i] = r.isSelf(p.Host)
	}
	if !slices.Contains(own, true) && r.in.Resolver != nil {
		// In parallel: DNS may take seconds to say that a name does not exist.
		var wait sync.WaitGroup
		slots := make(chan struct{}, 64)
		for i, p := range peers {
			if _, err := netip.ParseAddr(p.Host); err == nil {
				continue
			}
			wait.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				own[i] = slices.ContainsFunc(r.lookup(p.Host), r.isOwn)
			})
		}
		wait.Wait()
	}
	var found, atPort []Peer
	for i, p := range peers {
		if own[i] {
			found = append(found, p)
			if p.Port == port {
				atPort = append(atPort, p)
			}
		}
	}
	switch {
	case !isPort || len(found) < 2:
		return found
	case len(atPort) == 0:
		panic(r.fail(portVar, "", "%s=%d but none of the containers at this place (%s) has that port",
			portVar.name, port, r.whoAmI()))
	}
	return atPort
}
