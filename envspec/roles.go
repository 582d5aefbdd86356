package envspec

import (
	"slices"
	"strconv"
	"strings"
)

// These functions fill in roles, peers and this container's place for several schedulers.

// defaultRole is the role of containers without one.
const defaultRole = "worker"

// addRole appends a role with one container per host. A blank host means that only the container's index is known.
func (r *reader) addRole(job *Job, role string, hosts []string, v variable) {
	if len(hosts) > maxTasks {
		panic(r.bad(v, "", "names %d containers, more than %d", len(hosts), maxTasks))
	}
	r.spread = true
	job.Roles = append(job.Roles, Role{Name: role, Count: len(hosts)})
	r.counts[role] = v
	for i, host := range hosts {
		if host != "" {
			r.check(v, checkHost(host))
		}
		r.origin[peerKey{role, i}] = v
		job.Peers = append(job.Peers, Peer{Role: role, Index: i, Host: host})
	}
	r.note("peers", v)
	if r.sources["size"] == "" {
		r.note("size", v)
	}
}

// addHosts is addRole for this container's role, whose number of containers another variable gives.
func (r *reader) addHosts(job *Job, hosts []string, v, count variable) {
	r.addRole(job, job.Role, hosts, v)
	r.counts[job.Role] = count
}

// countRole appends a role without known hosts. A count of -1 is unknown.
func (r *reader) countRole(job *Job, role string, count int, v variable) {
	job.Roles = append(job.Roles, Role{Name: role, Count: count})
	r.counts[role] = v
	if count >= 0 && r.sources["size"] == "" {
		r.note("size", v)
	}
}

// addSeed appends the place of rank 0, for containers that know no other.
func (r *reader) addSeed(job *Job, host string, v variable) {
	r.check(v, checkHost(host))
	job.Seeds = append(job.Seeds, Seed{Host: host, Port: r.usualPort()})
	r.note("seeds", v)
}

// soleRole sets the role where a scheduler has no roles: PAIINIT_ROLE or the default.
func (r *reader) soleRole(job *Job, system variable) {
	job.Role = defaultRole
	r.note("role", system)
	r.explicitRole(job)
}

// explicitRole sets the role to PAIINIT_ROLE, if that is set.
func (r *reader) explicitRole(job *Job) {
	v, ok := r.get("PAIINIT_ROLE")
	if !ok {
		return
	}
	if !isRoleName(v.value) {
		panic(r.bad(v, "", "is not a role name (letters, digits, and . _ ~ - after the first)"))
	}
	job.Role = v.value
	r.note("role", v)
}

// ownRole sets the role to PAIINIT_ROLE, or else to role. It must be one of job.Roles.
func (r *reader) ownRole(job *Job, role string, from, list variable) {
	if v, ok := r.get("PAIINIT_ROLE"); ok {
		role, from = v.value, v
	}
	r.note("role", from)
	job.Role = role
	if slices.Contains(roleNames(job.Roles), role) {
		return
	}
	from.value = role
	panic(r.notOneOf(from, job.Roles, list, ""))
}

func roleNames(roles []Role) []string {
	names := make([]string, len(roles))
	for i, role := range roles {
		names[i] = role.Name
	}
	return names
}

// notOneOf returns the error that a role is not one of roles, which list gives.
func (r *reader) notOneOf(role variable, roles []Role, list variable, advice string) *VarError {
	known := quoteAll(roleNames(roles))
	return r.fail(role, advice, "role %s (%s) is not one of %s (%s)", quote(role.value), role.name, known, list.name)
}

// ownIndex sets the index to PAIINIT_INDEX, or else to the first of names that is set.
func (r *reader) ownIndex(job *Job, names ...string) {
	names = append([]string{"PAIINIT_INDEX"}, names...)
	index, v, ok := r.number(0, maxTasks, names...)
	if !ok {
		panic(r.missing("set PAIINIT_INDEX", names[1:]...))
	}
	job.Index = index
	r.note("index", v)
}

// scheduledIndex sets the index to PAIINIT_INDEX, or else to the scheduler's.
func (r *reader) scheduledIndex(job *Job, index int, v variable) {
	job.Index = index
	r.note("index", v)
	r.explicitIndex(job)
}

// explicitIndex lets PAIINIT_INDEX replace the scheduler's index.
func (r *reader) explicitIndex(job *Job) {
	if r.has("PAIINIT_INDEX") {
		r.ownIndex(job)
	}
}

// checkOnce refuses a process that was started beside another one in the same place: its number, in the variable name,
// is not 0.
func (r *reader) checkOnce(name, where, advice string) {
	v, ok := r.get(name)
	if n, err := strconv.Atoi(v.value); ok && (n != 0 || err != nil) {
		panic(r.fail(v, advice, "%s=%s: started more than once %s", v.name, quotePlain(v.value), where))
	}
}

// gpusEach reads the number of GPUs in each container of the role.
func (r *reader) gpusEach(job *Job, names ...string) {
	if r.gpusHere(names...) {
		r.gpus[job.Role] = r.ownGPUs
	}
}

// gpusHere reads the number of GPUs in this container.
func (r *reader) gpusHere(names ...string) bool {
	v, ok := r.get(names...)
	if !ok {
		return false
	}
	n, ok := r.hint(v, v.value)
	if ok {
		r.ownGPUs = n
		r.note("gpus", v)
	}
	return ok
}

// jobID sets the job's name. Every container must derive the same one.
func (r *reader) jobID(job *Job, id string, v variable) {
	job.ID = strings.ToValidUTF8(id, "?")
	r.note("job", v)
}

// readID sets the job's name to the first of names that is set.
func (r *reader) readID(job *Job, names ...string) {
	if v, ok := r.get(names...); ok {
		r.jobID(job, v.value, v)
	}
}

// addSecret appends a file, if it exists.
func (r *reader) addSecret(job *Job, path string) {
	if r.exists(path) {
		job.Secrets = append(job.Secrets, Secret{Kind: "file", Name: path})
	}
}

// soleContainer makes this container a job of its own.
func soleContainer(r *reader, job *Job, v variable) {
	job.Role, job.Index = defaultRole, 0
	job.Roles = []Role{{Name: defaultRole, Count: 1}}
	job.Peers = []Peer{onlyPeer(r, defaultRole)}
	for _, field := range []string{"role", "index", "size", "peers"} {
		r.note(field, v)
	}
}

// onlyPeer returns this container as the only peer of a job of one.
func onlyPeer(r *reader, role string) Peer {
	host := r.in.Hostname
	if checkHost(host) != "" {
		host = "localhost"
	}
	return Peer{Role: role, Host: host}
}
