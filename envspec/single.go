package envspec

// matchSingle always matches: without any sign of a scheduler, the container is alone.
func matchSingle(*reader) string { return "default" }

// readSingle reads a container without a scheduler.
func readSingle(r *reader, job *Job) error {
	job.Role, job.Index = defaultRole, 0
	job.Roles = []Role{{Name: defaultRole, Count: 1}}
	job.Peers = []Peer{onlyPeer(r, defaultRole)}
	for _, field := range []string{"role", "index", "size", "peers"} {
		r.sources[field] = "default"
	}
	return nil
}
