package envspec

// Source: sky/skylet/constants.py of github.com/skypilot-org/skypilot.

func matchSkyPilot(r *reader) string { return r.sees("SKYPILOT_NODE_RANK") }

func readSkyPilot(r *reader, job *Job) {
	r.readID(job, "SKYPILOT_TASK_ID")
	readNodeLines(r, job, "SKYPILOT_NODE_IPS", "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES", "",
		"SKYPILOT_NUM_GPUS_PER_NODE")
}
