package envspec

import (
	"net/netip"
	"path"
	"slices"
	"strings"
	"sync"
)

// readPeers reads PAIINIT_PEERS, which replaces the scheduler's peers. The role and index in job are what is already
// known about this container.
func readPeers(r *reader, job *Job) error {
	v, _ := r.get("PAIINIT_PEERS")
	r.note("peers", v)
	r.note("size", v)
	job.Roles, job.Peers, job.Seeds = []Role{}, []Peer{}, []Seed{}
	r.forgetPeers()
	delete(r.sources, "seeds")
	if strings.HasPrefix(v.value, "dns:") {
		return readDNSPeers(r, job, v)
	}
	if name, ok := strings.CutPrefix(v.value, "@"); ok {
		list, err := readPeerFile(r, v, name)
		if err != nil {
			return err
		}
		v.value, v.file = list, name
		r.note("peers", v)
		r.note("size", v)
	}
	if err := readPeerList(r, job, v); err != nil {
		return err
	}
	rankRoles(r, job)
	return locate(r, job, v)
}

// readPeerFile reads a peer list with one container per line. "#" starts a comment.
func readPeerFile(r *reader, v variable, name string) (string, error) {
	if !path.IsAbs(name) {
		return "", r.wrong(v, "", "the path must be absolute")
	}
	text, ok := r.file(path.Clean(name))
	if !ok {
		return "", r.wrong(v, "", "cannot read %s", quote(name))
	}
	var list []string
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		if line = clean(line); line != "" {
			list = append(list, line)
		}
	}
	if len(list) == 0 {
		return "", r.wrong(v, "", "%s names no containers", quote(name))
	}
	return strings.Join(list, ","), nil
}

// readPeerList reads host[:port] or role-index=host[:port], separated by commas. Without names, the order gives the
// ranks.
func readPeerList(r *reader, job *Job, v variable) error {
	list, err := r.items(v, ",")
	if err != nil {
		return err
	}
	port, _, ok, err := r.port()
	if err != nil {
		return err
	}
	if !ok {
		port = defaultPort
	}
	taken := make(map[peerKey]bool)
	count := make(map[string]int)
	for i, item := range list {
		name, place, named := strings.Cut(item, "=")
		if i > 0 && named != strings.Contains(list[0], "=") {
			return r.wrong(v, "", "%s and %s: give all containers a name or none", quote(list[0]), quote(item))
		}
		p := Peer{Role: defaultRole, Index: i, Port: port}
		if named {
			role, index, ok := splitAlias(clean(name))
			if !ok {
				return r.wrong(v, "", "%s is not role-index", quote(name))
			}
			p.Role, p.Index = role, index
		} else {
			place = item
		}
		hp, problem := parseHostPort(clean(place))
		if problem != "" {
			return r.wrong(v, "", "%s", problem)
		}
		p.Host = hp.host
		if hp.port != 0 {
			p.Port = hp.port
		}
		key := peerKey{p.Role, p.Index}
		if taken[key] {
			return r.wrong(v, "", "%s occurs twice", alias(p.Role, p.Index))
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
				return r.wrong(v, "number every role from 0", "%s is missing", alias(role.Name, index))
			}
		}
	}
	return nil
}

// locate finds this container among job.Peers by rank, by role and index, or by name and address.
func locate(r *reader, job *Job, v variable) error {
	plain := !strings.Contains(v.value, "=")
	role, isRole := r.get("PAIINIT_ROLE")
	if isRole && !slices.ContainsFunc(job.Roles, func(x Role) bool { return x.Name == role.value }) {
		advice := ""
		if plain {
			advice = "name the containers in it, as in " + quote(alias(role.value, 0)+"="+job.Peers[0].Host)
		}
		return r.notOneOf(role, job.Roles, v, advice)
	}
	index, indexVar, isIndex, err := r.number(0, maxTasks, "PAIINIT_INDEX")
	if err != nil {
		return err
	}
	rank, rankVar, isRank, err := r.number(0, maxTasks, "PAIINIT_RANK")
	if err != nil {
		return err
	}
	candidates := func(match func(Peer) bool) []Peer {
		var list []Peer
		for _, p := range job.Peers {
			if match(p) {
				list = append(list, p)
			}
		}
		return list
	}
	given := candidates(func(p Peer) bool {
		return (!isRole || p.Role == role.value) && (!isIndex || p.Index == index) && (!isRank || p.Rank == rank)
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
		return r.fail(wrong, "", "no container of %s (%d) has %s", v.name, len(job.Peers), strings.Join(asked, " and "))
	}
	if (isRole || isIndex || isRank) && len(given) == 1 {
		switch {
		case isIndex:
			v = indexVar
		case isRank:
			v = rankVar
		}
		return becomeSelf(r, job, given[0], v)
	}
	// The scheduler's role and index count only if the list has names.
	if !plain && job.Index >= 0 {
		sched := candidates(func(p Peer) bool { return p.Role == job.Role && p.Index == job.Index })
		if len(sched) == 1 {
			job.Role, job.Index = sched[0].Role, sched[0].Index
			return nil
		}
	}
	found, err := peersHere(r, given)
	if err != nil {
		return err
	}
	switch len(found) {
	case 1:
		return becomeSelf(r, job, found[0], v)
	case 0:
		return r.wrong(v, "set PAIINIT_RANK", "none of this container's names and addresses (%s) is in it", r.whoAmI())
	}
	return r.wrong(v, "set PAIINIT_RANK or PAIINIT_PORT", "%s and %s are both this container (%s)", found[0].Alias,
		found[1].Alias, r.whoAmI())
}

// becomeSelf makes p this container.
func becomeSelf(r *reader, job *Job, p Peer, from variable) error {
	job.Role, job.Index = p.Role, p.Index
	r.note("index", from)
	if !r.has("PAIINIT_ROLE") {
		r.sources["role"] = r.sources["peers"]
	}
	return nil
}

// peersHere returns the peers with this container's name or addresses and, if there is an explicit port, with that
// port. It asks DNS only if nothing else matches.
func peersHere(r *reader, peers []Peer) ([]Peer, error) {
	port, portVar, isPort, err := r.port()
	if err != nil {
		return nil, err
	}
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
				addrs, err := r.in.Resolver.LookupHost(r.ctx, p.Host)
				own[i] = err == nil && slices.ContainsFunc(addrs, r.isOwn)
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
	if isPort && len(found) > 1 {
		if len(atPort) == 0 {
			return nil, r.fail(portVar, "", "%s=%d but none of the containers at this place (%s) has that port",
				portVar.name, port, r.whoAmI())
		}
		return atPort, nil
	}
	return found, nil
}
