package hostfile

import (
	"strconv"
	"strings"
)

// Container is a container that needs a name in the host lists of a job.
type Container struct {
	Host  string // its host name
	Alias string // its role and index: unique in the job
}

// Names returns the names of all containers in host lists, in rank order. A launcher knows itself by its host name, so
// Names uses it if every launcher can write it and no other container has it. Otherwise, as for two containers on one
// host, the name is role and index, or the rank if the role's name contains characters that host lists do not allow.
func Names(all []Container) []string {
	count := make(map[string]int)
	for _, c := range all {
		count[c.Host]++
		if c.Alias != c.Host {
			count[c.Alias]++
		}
	}
	names := make([]string, len(all))
	for rank, c := range all {
		switch {
		case count[c.Host] == 1 && expressible(c.Host):
			names[rank] = c.Host
		case expressible(c.Alias):
			names[rank] = c.Alias
		default:
			names[rank] = "rank-" + strconv.Itoa(rank)
		}
	}
	return names
}

// expressible names have no dot: Open MPI 4 would cut the name there.
func expressible(name string) bool {
	for _, d := range []Dialect{OpenMPI, Hydra} {
		if strings.Contains(name, ".") || Check(d, name) != nil {
			return false
		}
	}
	return true
}
