package envspec

// Source: site/content/en/docs/concepts of github.com/kubernetes-sigs/jobset.

func matchJobSet(r *reader) string {
	if r.has("JOB_COMPLETION_INDEX") {
		return r.sees("PAIINIT_JOB_INDEX", "PAIINIT_JOB_REPLICAS")
	}
	return ""
}

// readJobSet reads a pod named JOBSET-JOB-JOBINDEX-INDEX. The manifest passes the number of the replicated job's jobs
// and the index of this one from the pod's labels, as PAIINIT_JOB_REPLICAS and PAIINIT_JOB_INDEX.
func readJobSet(r *reader, job *Job) {
	completion, _ := r.get("JOB_COMPLETION_INDEX")
	r.soleRole(job, completion)
	size := podCount(r, "replicas x parallelism")
	replicas, replicasVar := r.needNumber("take it from the label jobset.sigs.k8s.io/replicatedjob-replicas",
		1, maxTasks, "PAIINIT_JOB_REPLICAS")
	if size%replicas != 0 {
		panic(r.bad(replicasVar, "", "does not divide %s=%d", r.sources["size"], size))
	}
	each := size / replicas
	jobIndex, jobVar := r.needNumber("take it from the label jobset.sigs.k8s.io/job-index",
		0, replicas-1, "PAIINIT_JOB_INDEX")
	r.ownIndex(job, "JOB_COMPLETION_INDEX")
	if !r.has("PAIINIT_INDEX") {
		if job.Index >= each {
			panic(r.bad(completion, "", "is outside 0..%d (%s=%d for %d jobs)", each-1, r.sources["size"], size,
				replicas))
		}
		job.Index += jobIndex * each
		r.sources["index"] = jobVar.source() + ", " + completion.source()
	}
	addNumberedPods(r, job, size, each)
}
