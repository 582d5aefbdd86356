package envspec

// defaultRole is the role of containers that nobody gave one.
const defaultRole = "worker"

// matchSingle takes what nobody else wants: one container.
func matchSingle(*reader) string { return "default" }

// readSingle reads a container without a scheduler.
func readSingle(r *reader, job *Job) error {
	job.Role, job.Index = defaultRole, 0
	job.Roles = []Role{{Name: defaultRole, Count: 1}}
	job.Peers = []Peer{r.onlyPeer(defaultRole)}
	for _, field := range []string{"role", "index", "size", "peers"} {
		r.sources[field] = "default"
	}
	return nil
}

// onlyPeer is this container in a job of one.
func (r *reader) onlyPeer(role string) Peer {
	host := r.in.Hostname
	if checkHost(host) != "" {
		host = "localhost"
	}
	return Peer{Role: role, Host: host}
}
