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

// Names are the names of all containers, in rank order, in the host lists of every launcher. A launcher knows itself by
// its host name, so that is the name where every launcher can write it and no other container has it; two containers on
// one host share theirs and go by role and index. A role's name may hold what no host list can: what is left then is the
// rank.
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
