package hostfile

import (
	"strconv"
	"strings"
)

// Container is a container that needs a name in the host lists of a job.
type Container struct {
	Host  string // host name
	Alias string // role and index, unique in the job
}

// Names returns the names of all containers for the host lists of every launcher, in rank order. A launcher knows
// itself by its host name, so a container gets that name if it is unique and every launcher can write it. Containers
// that share a host get role and index. If no host list can hold the role's name, the name is the rank.
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

// expressible says whether every launcher can write a name. It refuses dots, at which Open MPI 4 cuts names.
func expressible(name string) bool {
	return !strings.Contains(name, ".") && Check(OpenMPI, name) == nil && Check(Hydra, name) == nil
}
