package envspec

// matchStatefulSet detects a numbered pod of a headless Service in a job whose size is given. Pods of a Deployment have
// neither number nor Service.
func matchStatefulSet(r *reader) string {
	name, ok := r.podName()
	if _, _, numbered := splitAlias(name.value); !ok || !numbered || !r.has("PAIINIT_SIZE") ||
		r.subdomain(name.value) == "" {
		return ""
	}
	return name.name
}

func readStatefulSet(r *reader, job *Job) error {
	name, _ := r.podName()
	if err := r.soleRole(job, name); err != nil {
		return err
	}
	_, index, ok := splitAlias(name.value)
	if !ok {
		if name.name == "" {
			return r.missing("set PAIINIT_POD_NAME", "HOSTNAME")
		}
		return r.bad(name, "set PAIINIT_POD_NAME", "does not end in a number")
	}
	job.Index = index
	r.note("index", name)
	if err := r.explicitIndex(job); err != nil {
		return err
	}
	size, err := podCount(r, "spec.replicas")
	if err != nil {
		return err
	}
	return addNumberedPods(r, job, size, size)
}
