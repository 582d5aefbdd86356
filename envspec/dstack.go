package envspec

// Source: runner/internal/executor/executor.go of github.com/dstackai/dstack.

func matchDstack(r *reader) string { return r.sees("DSTACK_NODE_RANK") }

func readDstack(r *reader, job *Job) {
	r.readID(job, "DSTACK_RUN_ID", "DSTACK_RUN_NAME")
	readNodeLines(r, job, "DSTACK_NODES_IPS", "DSTACK_NODE_RANK", "DSTACK_NODES_NUM", "DSTACK_MASTER_NODE_IP",
		"DSTACK_GPUS_PER_NODE")
}
