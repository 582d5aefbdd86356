package envspec

// Source: site/content/en/docs/concepts of github.com/kubernetes-sigs/jobset.

func matchJobSet(r *reader) string {
	if r.has("JOB_COMPLETION_INDEX") {
		return r.sees("PAIINIT_JOB_INDEX", "PAIINIT_JOB_REPLICAS")
	}
	return ""
}

// readJobSet reads a pod named JOBSET-JOB-JOBINDEX-INDEX, of a replicated job whose number of jobs and own index the
// pod's labels tell, which the manifest hands over as PAIINIT_JOB_REPLICAS and PAIINIT_JOB_INDEX.
func readJobSet(r *reader, job *Job) error {
	completion, _ := r.get("JOB_COMPLETION_INDEX")
	if err := r.soleRole(job, completion); err != nil {
		return err
	}
	size, err := podCount(r, "replicas x parallelism")
	if err != nil {
		return err
	}
	replicas, replicasVar, ok, err := r.number(1, maxTasks, "PAIINIT_JOB_REPLICAS")
	switch {
	case err != nil:
		return err
	case !ok:
		return r.missing("take it from the label jobset.sigs.k8s.io/replicatedjob-replicas", "PAIINIT_JOB_REPLICAS")
	case size%replicas != 0:
		return r.bad(replicasVar, "", "does not divide %s=%d", r.sources["size"], size)
	}
	each := size / replicas
	jobIndex, jobVar, err := r.required("take it from the label jobset.sigs.k8s.io/job-index",
		0, replicas-1, "PAIINIT_JOB_INDEX")
	if err != nil {
		return err
	}
	if err := r.ownIndex(job, "JOB_COMPLETION_INDEX"); err != nil {
		return err
	}
	if !r.has("PAIINIT_INDEX") {
		if job.Index >= each {
			return r.bad(completion, "", "is outside 0..%d (%s=%d for %d jobs)", each-1, r.sources["size"], size,
				replicas)
		}
		job.Index += jobIndex * each
		r.sources["index"] = jobVar.source() + ", " + completion.source()
	}
	return addNumberedPods(r, job, size, each)
}
