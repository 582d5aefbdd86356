package envspec

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
)

// readDNSPeers reads dns:NAME[:port][,dns:NAME[:port]...]. Every name stands for all containers of the role of that
// name. The number of its addresses does not tell the size of the job: it grows while containers start.
func readDNSPeers(r *reader, job *Job, v variable) {
	delete(r.sources, "size")
	list := r.items(v, ",")
	port, portVar, isPort := r.port()
	ports := make(map[string]int)
	for _, item := range list {
		place, ok := strings.CutPrefix(item, "dns:")
		if !ok {
			panic(r.wrong(v, "", "%s: give all names dns: or none", quote(item)))
		}
		hp := r.place(v, place)
		if _, err := netip.ParseAddr(hp.host); err == nil {
			panic(r.wrong(v, "", "%s is an address, not a DNS name", quote(hp.host)))
		}
		role := strings.TrimPrefix(hp.host, "tasks.") // swarm's name for the containers of a service
		if _, dup := ports[role]; dup {
			panic(r.wrong(v, "", "%s occurs twice", quote(hp.host)))
		}
		hp.port = cmp.Or(hp.port, port, defaultPort)
		ports[role] = hp.port
		job.Roles = append(job.Roles, Role{Name: role, Count: -1})
		job.Seeds = append(job.Seeds, Seed{Host: hp.host, Port: hp.port, Role: role})
		r.note("seeds", v)
	}
	// The scheduler's errors do not count beside PAIINIT_PEERS, and one of them may have hidden these variables.
	r.explicitRole(job)
	r.explicitIndex(job)
	findDNSSelf(r, job, v)
	job.Port = ports[job.Role]
	if isPort && job.Port != port {
		const problem = "%s=%d but %s gives %q port %d"
		panic(r.fail(portVar, "leave one of them out", problem, portVar.name, port, v.name, job.Role, job.Port))
	}
	if r.sources["port"] = v.source(); job.Port == defaultPort {
		r.sources["port"] = "default"
	}
}

// checkAlone refuses a job of one container if the container's name in DNS has addresses of other containers. A job of
// one opens no port, so these containers would never notice each other.
func checkAlone(r *reader, job *Job) {
	if job.Size != 1 {
		return
	}
	for _, seed := range job.Seeds {
		if seed.Role == "" || seed.Role != job.Role {
			continue
		}
		addrs := r.lookup(seed.Host)
		var others []string
		for _, a := range addrs {
			if !r.isOwn(a) {
				others = append(others, a.Unmap().String())
			}
		}
		if len(others) == 0 || len(others) == len(addrs) {
			continue // all of them: the name belongs to something else, such as a load balancer
		}
		slices.Sort(others)
		places := strings.Join(others, ", ")
		v, _ := r.get("PAIINIT_SIZE")
		panic(r.fail(v, "set it to the number of all containers, or start one container of the service",
			"%s=%d but other containers of %s run at %s", v.name, job.Size, quote(seed.Host), places))
	}
}

// findDNSSelf finds this container's role and index: the given ones, else by the names of its addresses.
func findDNSSelf(r *reader, job *Job, v variable) {
	role, given := r.get("PAIINIT_ROLE")
	names := roleNames(job.Roles)
	switch known := slices.Contains(names, job.Role); {
	case given && !known:
		panic(r.notOneOf(role, job.Roles, v, ""))
	case known:
	case len(names) == 1:
		job.Role = names[0]
		r.note("role", v)
	default:
		job.Role = ""
	}
	if job.Role != "" && job.Index >= 0 {
		return
	}
	candidates := names
	if job.Role != "" {
		candidates = []string{job.Role}
	}
	name, index, answer := askPTR(r, candidates)
	if name != "" {
		job.Role = name
		if r.sources["role"] == "" {
			r.sources["role"] = answer
		}
		if job.Index < 0 {
			job.Index = index
			r.sources["index"] = answer
		}
		return
	}
	if job.Role == "" {
		if i := askHost(r, job.Seeds); i >= 0 {
			job.Role = names[i]
			r.sources["role"] = "DNS " + job.Seeds[i].Host
		}
	}
	if job.Role == "" {
		panic(r.wrong(v, "set PAIINIT_ROLE", "none of the names has an address of this container (%s)", r.whoAmI()))
	}
}

// askHost returns the position of the only name that has an address of this container, or -1.
func askHost(r *reader, seeds []Seed) int {
	found := -1
	for i, seed := range seeds {
		switch own := slices.ContainsFunc(r.lookup(seed.Host), r.isOwn); {
		case own && found >= 0:
			return -1
		case own:
			found = i
		}
	}
	return found
}

// quoteName quotes a DNS name only if it has odd characters.
func quoteName(name string) string {
	if checkHost(strings.TrimSuffix(name, ".")) == "" {
		return name
	}
	return quote(name)
}
