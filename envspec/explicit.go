package envspec

import (
	"net/netip"
	"path"
	"slices"
	"strings"
	"sync"
)

// matchExplicit sees flags and PAIINIT_ variables that place the container in a job.
func matchExplicit(r *reader) string {
	if v, ok := r.get("PAIINIT_PEERS", "PAIINIT_ROLE", "PAIINIT_INDEX", "PAIINIT_RANK", "PAIINIT_SIZE"); ok {
		return v.name
	}
	return ""
}

// readExplicit reads flags and PAIINIT_ variables without a scheduler.
func readExplicit(r *reader, job *Job) error {
	if err := r.explicitSelf(job); err != nil {
		return err
	}
	if r.has("PAIINIT_PEERS") {
		return r.peers(job)
	}
	return r.alone(job)
}

// explicitSelf reads the own role and index from flags and PAIINIT_ variables.
func (r *reader) explicitSelf(job *Job) error {
	if v, ok := r.get("PAIINIT_ROLE"); ok {
		if !isRoleName(v.value) {
			return r.bad(v, "", "is not a role name (letters, digits, and . _ ~ - after the first)")
		}
		job.Role = v.value
		r.note("role", v)
	}
	index, v, ok, err := r.number(0, maxTasks, "PAIINIT_INDEX")
	if err != nil {
		return err
	}
	if ok {
		job.Index = index
		r.note("index", v)
	}
	return nil
}

// alone completes a container that knows its place but no peers: a job of one, or the one that the others look for.
func (r *reader) alone(job *Job) error {
	size, sizeVar, sized, err := r.number(1, maxTasks, "PAIINIT_SIZE")
	if err != nil {
		return err
	}
	rank, rankVar, ranked, err := r.number(0, maxTasks, "PAIINIT_RANK")
	if err != nil {
		return err
	}
	if !sized {
		if job.Role != "" || max(rank, job.Index) > 0 {
			return nil // settle asks for the size
		}
		size, sizeVar = 1, variable{name: "default", value: "1"}
	}
	r.note("size", sizeVar)
	switch {
	case job.Index >= 0:
	case size == 1:
		job.Index = 0
		r.sources["index"] = "default"
	case ranked && job.Role == "":
		job.Index = rank // without roles the index is the rank
		r.note("index", rankVar)
	case job.Role == "":
		return r.fail(sizeVar, "set PAIINIT_RANK or PAIINIT_PEERS", "%s=%d but nothing tells which of them this container is",
			sizeVar.name, size)
	}
	first := ranked && rank == 0 || job.Index == 0 && (job.Role == "" || size == 1 || launcherLike(job.Role))
	if !first && max(rank, job.Index) < size {
		return r.fail(sizeVar, "set PAIINIT_PEERS", "%s=%d but nothing tells where the others are", sizeVar.name, size)
	}
	count := -1
	if job.Role == "" || size == 1 {
		count = size
	}
	if job.Role == "" {
		job.Role = defaultRole
		r.sources["role"] = "default"
	}
	job.Roles = []Role{{Name: job.Role, Count: count}}
	r.counts[job.Role] = sizeVar
	if size == 1 && job.Index == 0 {
		job.Peers = []Peer{r.onlyPeer(job.Role)}
		r.sources["peers"] = "default"
	}
	return nil
}

// peers reads PAIINIT_PEERS, which replaces whatever peers a scheduler lists. The role and index of job are what is known
// already of this container.
func (r *reader) peers(job *Job) error {
	v, _ := r.get("PAIINIT_PEERS")
	r.note("peers", v)
	r.note("size", v)
	job.Roles, job.Peers, job.Seeds = []Role{}, []Peer{}, []Seed{}
	clear(r.origin)
	clear(r.counts)
	clear(r.gpus) // go by the scheduler's roles
	clear(r.launchOnly)
	clear(r.slots)
	delete(r.sources, "seeds")
	r.spread, r.openSize, r.eachSlots, r.ownSlots = false, false, slotCount{}, slotCount{}
	if strings.HasPrefix(v.value, "dns:") {
		return r.dnsPeers(job, v)
	}
	if name, ok := strings.CutPrefix(v.value, "@"); ok {
		list, err := r.peerFile(v, name)
		if err != nil {
			return err
		}
		v.value, v.file = list, name
		r.note("peers", v)
		r.note("size", v)
	}
	if err := r.listPeers(job, v); err != nil {
		return err
	}
	r.rankRoles(job)
	return r.locate(job, v)
}

// peerFile reads a peer list with one container per line; "#" starts a comment.
func (r *reader) peerFile(v variable, name string) (string, error) {
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

// listPeers reads host[:port] or role-index=host[:port], separated by commas. In a list without names the order is the
// rank.
func (r *reader) listPeers(job *Job, v variable) error {
	list, err := r.items(v, ",")
	if err != nil {
		return err
	}
	port, _, ok, err := r.port()
	if err != nil {
		return err
	}
	if !ok {
		port = DefaultPort
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

// locate finds this container among job.Peers: by rank, or by role and index, or by name and address.
func (r *reader) locate(job *Job, v variable) error {
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
		return r.becomeSelf(job, given[0], v)
	}
	// What a scheduler says counts only where the list uses its names.
	if !plain && job.Index >= 0 {
		sched := candidates(func(p Peer) bool { return p.Role == job.Role && p.Index == job.Index })
		if len(sched) == 1 {
			job.Role, job.Index = sched[0].Role, sched[0].Index
			return nil
		}
	}
	found, err := r.match(given)
	if err != nil {
		return err
	}
	switch len(found) {
	case 1:
		return r.becomeSelf(job, found[0], v)
	case 0:
		return r.wrong(v, "set PAIINIT_RANK", "none of this container's names and addresses (%s) is in it", r.whoAmI())
	}
	return r.wrong(v, "set PAIINIT_RANK or PAIINIT_PORT", "%s and %s are both this container (%s)", found[0].Alias,
		found[1].Alias, r.whoAmI())
}

func (r *reader) becomeSelf(job *Job, p Peer, from variable) error {
	job.Role, job.Index = p.Role, p.Index
	r.note("index", from)
	if !r.has("PAIINIT_ROLE") {
		r.sources["role"] = r.sources["peers"]
	}
	return nil
}

func (r *reader) notOneOf(role variable, roles []Role, list variable, advice string) error {
	names := make([]string, len(roles))
	for i := range roles {
		names[i] = roles[i].Name
	}
	return r.fail(role, advice, "role %s (%s) is not one of %s (%s)", quote(role.value), role.name, quoteAll(names), list.name)
}

// whoAmI lists the names and addresses by which this container looks for itself.
func (r *reader) whoAmI() string {
	var list []string
	if r.in.Hostname != "" {
		list = append(list, r.in.Hostname)
	}
	for _, a := range r.in.Addrs {
		list = append(list, a.Unmap().String())
	}
	if len(list) == 0 {
		return "it has neither"
	}
	return strings.Join(list, ", ")
}

// match returns the peers at this container's names and addresses, and at the explicit port if there is one. DNS is asked
// only if nothing else matches.
func (r *reader) match(peers []Peer) ([]Peer, error) {
	port, portVar, isPort, err := r.port()
	if err != nil {
		return nil, err
	}
	own := make([]bool, len(peers))
	for i, p := range peers {
		own[i] = r.isSelf(p.Host)
	}
	if !slices.Contains(own, true) && r.in.Resolver != nil {
		// All at once: a name that does not exist yet may take seconds to be denied.
		var wait sync.WaitGroup
		gate := make(chan struct{}, 64)
		for i, p := range peers {
			if _, err := netip.ParseAddr(p.Host); err == nil {
				continue
			}
			wait.Go(func() {
				gate <- struct{}{}
				defer func() { <-gate }()
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
			return nil, r.fail(portVar, "", "%s=%d but none of the containers at this place (%s) has that port", portVar.name, port,
				r.whoAmI())
		}
		return atPort, nil
	}
	return found, nil
}

// isSelf says whether a host of a list is this container by name or address.
func (r *reader) isSelf(host string) bool {
	if addr, err := netip.ParseAddr(host); err == nil {
		return r.isOwn(addr)
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	own := strings.ToLower(strings.TrimSuffix(r.in.Hostname, "."))
	if own == "" {
		return host == "localhost"
	}
	shortHost, _, hostLong := strings.Cut(host, ".")
	shortOwn, _, ownLong := strings.Cut(own, ".")
	// node1 and node1.cluster are the same; node1.a and node1.b are not.
	return host == "localhost" || host == own || shortHost == shortOwn && hostLong != ownLong
}

// isOwn says whether an address is this container's.
func (r *reader) isOwn(addr netip.Addr) bool {
	addr = addr.Unmap()
	return addr.IsLoopback() || slices.ContainsFunc(r.in.Addrs, func(a netip.Addr) bool { return a.Unmap() == addr })
}
