package envspec

// Sources: kubernetes.io/docs/tasks/job/job-with-pod-to-pod-communication, KEP-2214.

func matchIndexedJob(r *reader) string { return r.sees("JOB_COMPLETION_INDEX") }

// readIndexedJob reads a pod named JOB-INDEX.
func readIndexedJob(r *reader, job *Job) error {
	index, _ := r.get("JOB_COMPLETION_INDEX")
	if err := r.soleRole(job, index); err != nil {
		return err
	}
	if err := r.ownIndex(job, "JOB_COMPLETION_INDEX"); err != nil {
		return err
	}
	size, err := podCount(r, "spec.completions")
	if err != nil {
		return err
	}
	return addNumberedPods(r, job, size, size)
}
