package envspec

import "strings"

// AWS Batch tells the nodes of a multi-node parallel job the main node's address, except the main node.
// Source: supervised-scripts/mpi-run.sh of github.com/aws-samples/aws-mnpbatch-template.

func matchAWSBatch(r *reader) string { return r.sees("AWS_BATCH_JOB_NODE_INDEX") }

func readAWSBatch(r *reader, job *Job) {
	if v, ok := r.get("AWS_BATCH_JOB_ID"); ok {
		id, _, _ := strings.Cut(v.value, "#") // each node appends its number
		r.jobID(job, id, v)
	}
	if v, ok := r.get("AWS_BATCH_JOB_ATTEMPT"); ok {
		job.Attempt = v.value
		r.note("attempt", v)
	}
	size, sizeVar := r.needNumber("", 1, maxTasks, "AWS_BATCH_JOB_NUM_NODES")
	r.soleRole(job, sizeVar)
	r.countRole(job, job.Role, size, sizeVar)
	main, _, _ := r.number(0, size-1, "AWS_BATCH_JOB_MAIN_NODE_INDEX")
	node, v := r.needNumber("set PAIINIT_INDEX", 0, size-1, "AWS_BATCH_JOB_NODE_INDEX")
	rank := (node - main + size) % size // the main node has rank 0
	r.scheduledIndex(job, rank, v)
	if node != main {
		address := r.need("set PAIINIT_PEERS", "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS")
		r.addSeed(job, address.value, address)
	}
}
