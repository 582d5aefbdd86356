package envspec

// matchStatefulSet detects a numbered pod of a headless Service in a job whose size is given. Pods of a Deployment have
// neither number nor Service.
func matchStatefulSet(r *reader) string {
	name := r.podName()
	_, _, numbered := splitAlias(name.value)
	if !numbered || !r.has("PAIINIT_SIZE") || r.subdomain(name.value) == "" {
		return ""
	}
	return name.name
}

func readStatefulSet(r *reader, job *Job) {
	r.soleRole(job, r.podName())
	name := r.ownPod()
	_, index, ok := splitAlias(name.value)
	if !ok {
		panic(r.bad(name, "set PAIINIT_POD_NAME", "does not end in a number"))
	}
	r.scheduledIndex(job, index, name)
	size := podCount(r, "spec.replicas")
	addNumberedPods(r, job, size, size)
}
