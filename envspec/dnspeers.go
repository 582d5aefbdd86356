package envspec

import (
	"net/netip"
	"slices"
	"strings"
)

// readDNSPeers reads dns:NAME[:port][,dns:NAME[:port]...]. Every name stands for all containers of the role of that
// name. The number of its addresses does not tell the size of the job: it grows while containers start.
func readDNSPeers(r *reader, job *Job, v variable) error {
	delete(r.sources, "size")
	list, err := r.items(v, ",")
	if err != nil {
		return err
	}
	port, portVar, isPort, err := r.port()
	if err != nil {
		return err
	}
	ports := make(map[string]int)
	for _, item := range list {
		place, ok := strings.CutPrefix(item, "dns:")
		if !ok {
			return r.wrong(v, "", "%s: give all names dns: or none", quote(item))
		}
		hp, problem := parseHostPort(place)
		if problem == "" {
			if _, err := netip.ParseAddr(hp.host); err == nil {
				problem = quote(hp.host) + " is an address, not a DNS name"
			}
		}
		if problem != "" {
			return r.wrong(v, "", "%s", problem)
		}
		role := strings.TrimPrefix(hp.host, "tasks.") // swarm's name for the containers of a service
		if _, dup := ports[role]; dup {
			return r.wrong(v, "", "%s occurs twice", quote(hp.host))
		}
		if hp.port == 0 {
			hp.port = defaultPort
			if isPort {
				hp.port = port
			}
		}
		ports[role] = hp.port
		job.Roles = append(job.Roles, Role{Name: role, Count: -1})
		job.Seeds = append(job.Seeds, Seed{Host: hp.host, Port: hp.port, Role: role})
		r.note("seeds", v)
	}
	if err := findDNSSelf(r, job, v); err != nil {
		return err
	}
	job.Port = ports[job.Role]
	if isPort && job.Port != port {
		return r.fail(portVar, "leave one of them out", "%s=%d but %s gives %q port %d", portVar.name, port, v.name,
			job.Role, job.Port)
	}
	if r.sources["port"] = v.source(); job.Port == defaultPort {
		r.sources["port"] = "default"
	}
	return nil
}

// checkAlone refuses a job of one container if the container's name in DNS has addresses of other containers. A job of
// one opens no port, so these containers would never notice each other.
func checkAlone(r *reader, job *Job) error {
	if job.Size != 1 || r.in.Resolver == nil {
		return nil
	}
	for _, seed := range job.Seeds {
		if seed.Role == "" || seed.Role != job.Role {
			continue
		}
		addrs, err := r.in.Resolver.LookupHost(r.ctx, seed.Host)
		if err != nil || !slices.ContainsFunc(addrs, r.isOwn) {
			continue // the name belongs to something else, such as a load balancer
		}
		var others []string
		for _, a := range addrs {
			if !r.isOwn(a) {
				others = append(others, a.Unmap().String())
			}
		}
		if len(others) > 0 {
			slices.Sort(others)
			v, _ := r.get("PAIINIT_SIZE")
			return r.fail(v, "set it to the number of all containers, or start one container of the service",
				"%s=%d but other containers of %s run at %s", v.name, job.Size, quote(seed.Host),
				strings.Join(others, ", "))
		}
	}
	return nil
}

// findDNSSelf finds this container's role and index: the given ones, else by the names of its addresses.
func findDNSSelf(r *reader, job *Job, v variable) error {
	role, given := r.get("PAIINIT_ROLE")
	names := make([]string, len(job.Roles))
	for i := range job.Roles {
		names[i] = job.Roles[i].Name
	}
	switch known := slices.Contains(names, job.Role); {
	case given && !known:
		return r.notOneOf(role, job.Roles, v, "")
	case known:
	case len(names) == 1:
		job.Role = names[0]
		r.note("role", v)
	default:
		job.Role = ""
	}
	if job.Role != "" && job.Index >= 0 {
		return nil
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
		return nil
	}
	if job.Role == "" {
		if i := askHost(r, job.Seeds); i >= 0 {
			job.Role = names[i]
			r.sources["role"] = "DNS " + job.Seeds[i].Host
		}
	}
	if job.Role == "" {
		return r.wrong(v, "set PAIINIT_ROLE", "none of the names has an address of this container (%s)", r.whoAmI())
	}
	return nil
}

// askHost returns the position of the only name that has an address of this container, or -1.
func askHost(r *reader, seeds []Seed) int {
	found := -1
	if r.in.Resolver == nil {
		return found
	}
	for i, seed := range seeds {
		addrs, err := r.in.Resolver.LookupHost(r.ctx, seed.Host)
		if err != nil || !slices.ContainsFunc(addrs, r.isOwn) {
			continue
		}
		if found >= 0 {
			return -1
		}
		found = i
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
