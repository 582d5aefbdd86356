package envspec

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// matchCompose sees a peer list made of DNS names, as under docker compose.
func matchCompose(r *reader) string {
	if v, ok := r.get("PAIINIT_PEERS"); ok && strings.HasPrefix(v.value, "dns:") {
		return v.name
	}
	return ""
}

// askPTR asks DNS for the names of the own addresses. Docker answers with the container's name on that network, and
// compose calls containers project-service-number (project_service_number in its first version), numbered from 1; swarm
// calls them stack_service.number.id, or without a stack service.number.id.
func askPTR(r *reader, services []string) (service string, index int, answer string) {
	if r.in.Resolver == nil {
		return "", -1, ""
	}
	// A service "a-b" of project "p" and a service "b" of project "p-a" look the same: take the longest.
	services = slices.Clone(services)
	slices.SortStableFunc(services, func(a, b string) int { return len(b) - len(a) })
	for _, addr := range r.in.Addrs {
		if addr.IsLoopback() {
			continue
		}
		names, err := r.in.Resolver.LookupPTR(r.ctx, addr.Unmap())
		if err != nil {
			continue // agreed with the others instead
		}
		for _, service := range services {
			form := regexp.MustCompile(`^(?:.+[-_])?` + regexp.QuoteMeta(service) + `[-_.]([0-9]{1,9})\..+$`)
			for _, name := range names {
				m := form.FindStringSubmatch(name)
				if m == nil {
					continue
				}
				if n, err := strconv.Atoi(m[1]); err == nil && n >= 1 && n <= maxTasks {
					return service, n - 1, "PTR " + addr.Unmap().String() + " " + quoteName(name)
				}
			}
		}
	}
	return "", -1, ""
}
