package envspec

// RunPod's Instant Clusters tell every node the first one's address.
// Source: docs.runpod.io/instant-clusters/configuration.

func matchRunPod(r *reader) string {
	if r.has("PRIMARY_ADDR") && r.has("NUM_NODES") {
		return r.sees("PRIMARY_ADDR")
	}
	return ""
}

func readRunPod(r *reader, job *Job) {
	readKnownMaster(r, job, []string{"PRIMARY_ADDR", "MASTER_ADDR"}, []string{"NODE_RANK"},
		[]string{"NUM_NODES"}, "NUM_TRAINERS")
}
