package envspec

import "strings"

// What the readers of several schedulers use to fill in roles, peers and this container's place.

// defaultRole is the role of containers without one.
const defaultRole = "worker"

// addRole appends a role with one container per host. A blank host means that only the container's index is known.
func (r *reader) addRole(job *Job, role string, hosts []string, v variable) error {
	if len(hosts) > maxTasks {
		return r.bad(v, "", "names %d containers, more than %d", len(hosts), maxTasks)
	}
	r.spread = true
	job.Roles = append(job.Roles, Role{Name: role, Count: len(hosts)})
	r.counts[role] = v
	for i, host := range hosts {
		if host != "" {
			if problem := checkHost(host); problem != "" {
				return r.wrong(v, "", "%s", problem)
			}
		}
		r.origin[peerKey{role, i}] = v
		job.Peers = append(job.Peers, Peer{Role: role, Index: i, Host: host})
	}
	r.note("peers", v)
	if r.sources["size"] == "" {
		r.note("size", v)
	}
	return nil
}

// countRole appends a role of which only the number of containers is known, or not even that: -1.
func (r *reader) countRole(job *Job, role string, count int, v variable) {
	job.Roles = append(job.Roles, Role{Name: role, Count: count})
	r.counts[role] = v
	if count >= 0 && r.sources["size"] == "" {
		r.note("size", v)
	}
}

// addSeed appends the place of rank 0, for containers that know no other.
func (r *reader) addSeed(job *Job, host string, v variable) error {
	if problem := checkHost(host); problem != "" {
		return r.wrong(v, "", "%s", problem)
	}
	port, err := r.usualPort()
	if err != nil {
		return err
	}
	job.Seeds = append(job.Seeds, Seed{Host: host, Port: port})
	r.note("seeds", v)
	return nil
}

// soleRole sets the role where a scheduler has no roles: PAIINIT_ROLE or the default.
func (r *reader) soleRole(job *Job, system variable) error {
	job.Role = defaultRole
	r.note("role", system)
	v, ok := r.get("PAIINIT_ROLE")
	if !ok {
		return nil
	}
	if !isRoleName(v.value) {
		return r.bad(v, "", "is not a role name (letters, digits, and . _ ~ - after the first)")
	}
	job.Role = v.value
	r.note("role", v)
	return nil
}

// ownRole sets the role to PAIINIT_ROLE, or else to role. It must be one of job.Roles.
func (r *reader) ownRole(job *Job, role string, from, list variable) error {
	if v, ok := r.get("PAIINIT_ROLE"); ok {
		role, from = v.value, v
	}
	r.note("role", from)
	job.Role = role
	for _, known := range job.Roles {
		if known.Name == role {
			return nil
		}
	}
	from.value = role
	return r.notOneOf(from, job.Roles, list, "")
}

// notOneOf returns the error that a role is not one of roles, which list gives.
func (r *reader) notOneOf(role variable, roles []Role, list variable, advice string) error {
	names := make([]string, len(roles))
	for i := range roles {
		names[i] = roles[i].Name
	}
	return r.fail(role, advice, "role %s (%s) is not one of %s (%s)", quote(role.value), role.name, quoteAll(names),
		list.name)
}

// ownIndex sets the index to PAIINIT_INDEX, or else to the first of names that is set.
func (r *reader) ownIndex(job *Job, names ...string) error {
	names = append([]string{"PAIINIT_INDEX"}, names...)
	index, v, ok, err := r.number(0, maxTasks, names...)
	switch {
	case err != nil:
		return err
	case !ok && len(names) == 1:
		return r.missing("", names...)
	case !ok:
		return r.missing("set PAIINIT_INDEX", names[1:]...)
	}
	job.Index = index
	r.note("index", v)
	return nil
}

// explicitIndex lets PAIINIT_INDEX replace the scheduler's index.
func (r *reader) explicitIndex(job *Job) error {
	if !r.has("PAIINIT_INDEX") {
		return nil
	}
	return r.ownIndex(job)
}

// checkOnce refuses a process whose number among those of one place, in the variable name, is not 0.
func (r *reader) checkOnce(name, where, advice string) error {
	n, v, ok, err := r.number(0, maxTasks, name)
	if !ok || err == nil && n == 0 {
		return nil
	}
	return r.fail(v, advice, "%s=%s: started more than once %s", v.name, quotePlain(v.value), where)
}

// gpusEach reads the number of GPUs in each container of the role.
func (r *reader) gpusEach(job *Job, names ...string) {
	v, ok := r.get(names...)
	if !ok {
		return
	}
	if n, ok := r.hint(v, v.value); ok {
		r.gpus[job.Role], r.ownGPUs = n, n
		r.note("gpus", v)
	}
}

// gpusHere reads the number of GPUs in this container.
func (r *reader) gpusHere(names ...string) {
	v, ok := r.get(names...)
	if !ok {
		return
	}
	if n, ok := r.hint(v, v.value); ok {
		r.ownGPUs = n
		r.note("gpus", v)
	}
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

// soleContainer makes this container a job of its own.
func soleContainer(r *reader, job *Job, v variable) error {
	job.Role, job.Index = defaultRole, 0
	job.Roles = []Role{{Name: defaultRole, Count: 1}}
	job.Peers = []Peer{onlyPeer(r, defaultRole)}
	r.spread = true
	for _, field := range []string{"role", "index", "size", "peers"} {
		r.note(field, v)
	}
	return nil
}

// onlyPeer returns this container as the only peer of a job of one.
func onlyPeer(r *reader, role string) Peer {
	host := r.in.Hostname
	if checkHost(host) != "" {
		host = "localhost"
	}
	return Peer{Role: role, Host: host}
}
