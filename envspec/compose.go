package envspec

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// matchCompose detects a peer list of DNS names, as under docker compose.
func matchCompose(r *reader) string {
	v, _ := r.get("PAIINIT_PEERS")
	if strings.HasPrefix(v.value, "dns:") {
		return v.name
	}
	return ""
}

// askPTR asks DNS for the names of this container's addresses. Docker returns the container's name on that network.
// Compose calls containers project-service-number (its first version project_service_number), numbered from 1; swarm
// calls them stack_service.number.id, or service.number.id without a stack.
func askPTR(r *reader, services []string) (service string, index int, answer string) {
	if r.in.Resolver == nil {
		return "", -1, ""
	}
	// Service "a-b" of project "p" looks like service "b" of project "p-a": the longest name wins.
	services = slices.Clone(services)
	slices.SortStableFunc(services, func(a, b string) int { return len(b) - len(a) })
	for _, addr := range r.in.Addrs {
		if addr.IsLoopback() {
			continue
		}
		names, err := r.in.Resolver.LookupPTR(r.ctx, addr.Unmap())
		if err != nil {
			continue // the containers agree on the index later
		}
		for _, service := range services {
			form := regexp.MustCompile(`^(?:.+[-_])?` + regexp.QuoteMeta(service) + `[-_.]([0-9]{1,9})\..+$`)
			for _, name := range names {
				m := form.FindStringSubmatch(name)
				if m == nil {
					continue
				}
				if n, _ := strconv.Atoi(m[1]); n >= 1 && n <= maxTasks {
					r.container = containerName(name)
					return service, n - 1, "PTR " + addr.Unmap().String() + " " + quoteName(name)
				}
			}
		}
	}
	return "", -1, ""
}
