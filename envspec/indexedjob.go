package envspec

// Sources: kubernetes.io/docs/tasks/job/job-with-pod-to-pod-communication, KEP-2214.

func matchIndexedJob(r *reader) string { return r.sees("JOB_COMPLETION_INDEX") }

// readIndexedJob reads a pod named JOB-INDEX.
func readIndexedJob(r *reader, job *Job) {
	index, _ := r.get("JOB_COMPLETION_INDEX")
	r.soleRole(job, index)
	r.ownIndex(job, "JOB_COMPLETION_INDEX")
	size := podCount(r, "spec.completions")
	addNumberedPods(r, job, size, size)
}
