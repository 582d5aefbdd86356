package envspec

// matchExplicit detects flags and PAIINIT_ variables that give the container's place in a job.
func matchExplicit(r *reader) string {
	if v, ok := r.get("PAIINIT_PEERS", "PAIINIT_ROLE", "PAIINIT_INDEX", "PAIINIT_RANK", "PAIINIT_SIZE"); ok {
		return v.name
	}
	return ""
}

// readExplicit reads flags and PAIINIT_ variables without a scheduler.
func readExplicit(r *reader, job *Job) error {
	if err := readExplicitSelf(r, job); err != nil {
		return err
	}
	if r.has("PAIINIT_PEERS") {
		return readPeers(r, job)
	}
	return readAlone(r, job)
}

// readExplicitSelf reads this container's role and index from flags and PAIINIT_ variables.
func readExplicitSelf(r *reader, job *Job) error {
	if v, ok := r.get("PAIINIT_ROLE"); ok {
		if !isRoleName(v.value) {
			return r.bad(v, "", "is not a role name (letters, digits, and . _ ~ - after the first)")
		}
		job.Role = v.value
		r.note("role", v)
	}
	index, v, ok, err := r.number(0, maxTasks, "PAIINIT_INDEX")
	if err != nil {
		return err
	}
	if ok {
		job.Index = index
		r.note("index", v)
	}
	return nil
}

// readAlone completes a container without peers: the only one of its job, or the one called by all others.
func readAlone(r *reader, job *Job) error {
	size, sizeVar, sized, err := r.number(1, maxTasks, "PAIINIT_SIZE")
	if err != nil {
		return err
	}
	rank, rankVar, ranked, err := r.number(0, maxTasks, "PAIINIT_RANK")
	if err != nil {
		return err
	}
	if !sized {
		if job.Role != "" || max(rank, job.Index) > 0 {
			return nil // settle reports the missing size
		}
		size, sizeVar = 1, variable{name: "default", value: "1"}
	}
	r.note("size", sizeVar)
	switch {
	case job.Index >= 0:
	case size == 1:
		job.Index = 0
		r.sources["index"] = "default"
	case ranked && job.Role == "":
		job.Index = rank // without roles, the rank is the index
		r.note("index", rankVar)
	case job.Role == "":
		return r.fail(sizeVar, "set PAIINIT_RANK or PAIINIT_PEERS",
			"%s=%d but nothing tells which of them this container is", sizeVar.name, size)
	}
	first := ranked && rank == 0 || job.Index == 0 && (job.Role == "" || size == 1 || launcherLike(job.Role))
	if !first && max(rank, job.Index) < size {
		return r.fail(sizeVar, "set PAIINIT_PEERS", "%s=%d but nothing tells where the others are", sizeVar.name, size)
	}
	count := -1
	if job.Role == "" || size == 1 {
		count = size
	}
	if job.Role == "" {
		job.Role = defaultRole
		r.sources["role"] = "default"
	}
	job.Roles = []Role{{Name: job.Role, Count: count}}
	r.counts[job.Role] = sizeVar
	if size == 1 && job.Index == 0 {
		job.Peers = []Peer{onlyPeer(r, job.Role)}
		r.sources["peers"] = "default"
	}
	return nil
}
