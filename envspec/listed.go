package envspec

import (
	"cmp"
	"strconv"
	"strings"
)

// What schedulers have in common that list containers without giving each a port of ours.

// usualPort is where containers listen that got no port from their scheduler: the explicit one, or one of the job's
// own, or the default.
func (r *reader) usualPort() (int, error) {
	port, _, ok, err := r.port()
	if !ok {
		port = cmp.Or(r.jobPort, DefaultPort)
	}
	return port, err
}

// jobPorts is how many ports there are from DefaultPort on for the jobs of a scheduler that puts several of them on one
// host.
const jobPorts = 64

// portOfJob gives a job a port by its number. Jobs that follow each other have different ones.
func (r *reader) portOfJob(v variable) {
	if n, err := strconv.ParseUint(v.value, 10, 64); err == nil {
		r.jobPort = DefaultPort + int(n%jobPorts)
		r.note("port", v)
	}
}

// addRole appends a role with one container per host. Hosts may be blank: a container of which only the index is known.
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

// countRole appends a role of which only the number of containers is told, or not even that: -1.
func (r *reader) countRole(job *Job, role string, count int, v variable) {
	job.Roles = append(job.Roles, Role{Name: role, Count: count})
	r.counts[role] = v
	if count >= 0 && r.sources["size"] == "" {
		r.note("size", v)
	}
}

// addSeed appends the place of rank 0 for those who are told no other.
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

// soleRole is the role of all containers of a scheduler that has no roles.
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

// ownRole takes the explicit role, or else the scheduler's; either must be one of job.Roles.
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

// ownIndex takes the first of the explicit index and names.
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

// gpusEach takes the number of GPUs that every container of the role has.
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

// gpusHere takes the number of GPUs of this container alone.
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

// podName is the name of this pod: its host name, unless it has the host's network and with it the node's name.
func (r *reader) podName() (variable, bool) {
	v, ok := r.get("PAIINIT_POD_NAME", "HOSTNAME")
	if !ok && r.in.Hostname != "" {
		v, ok = variable{name: "HOSTNAME", value: r.in.Hostname}, true
	}
	if ok {
		v.value, _, _ = strings.Cut(v.value, ".")
	}
	return v, ok
}

// subdomain is the name of the headless Service that this pod belongs to: the kubelet writes its full name, such as
// pi-1.headless.default.svc.cluster.local, into /etc/hosts if the pod has one.
func (r *reader) subdomain(pod string) string {
	text, ok := r.file("/etc/hosts")
	if !ok {
		return ""
	}
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		for _, name := range strings.Fields(line)[min(1, len(strings.Fields(line))):] {
			rest, ok := strings.CutPrefix(name, pod+".")
			if service, domain, found := strings.Cut(rest, "."); ok && found && strings.Contains("."+domain+".", ".svc.") {
				return service
			}
		}
	}
	return ""
}

// jobID names the job if the scheduler does not do so by itself. Every container has to derive the same.
func (r *reader) jobID(job *Job, id string, v variable) {
	job.ID = strings.ToValidUTF8(id, "?")
	r.note("job", v)
}

// readID takes the first of names as the job's, and its attempt's, name.
func (r *reader) readID(job *Job, names ...string) {
	if v, ok := r.get(names...); ok {
		r.jobID(job, v.value, v)
	}
}
