package envspec

// matchExplicit detects flags and PAIINIT_ variables that give the container's place in a job.
func matchExplicit(r *reader) string {
	return r.sees("PAIINIT_PEERS", "PAIINIT_ROLE", "PAIINIT_INDEX", "PAIINIT_RANK", "PAIINIT_SIZE")
}

// readExplicit reads flags and PAIINIT_ variables without a scheduler.
func readExplicit(r *reader, job *Job) {
	r.explicitRole(job)
	r.explicitIndex(job)
	if r.has("PAIINIT_PEERS") {
		readPeers(r, job)
		return
	}
	readAlone(r, job)
}

// readAlone completes a container without peers: the only container of its job, or the container that all others call.
func readAlone(r *reader, job *Job) {
	size, sizeVar, sized := r.number(1, maxTasks, "PAIINIT_SIZE")
	rank, rankVar, ranked := r.number(0, maxTasks, "PAIINIT_RANK")
	if !sized {
		if job.Role != "" || max(rank, job.Index) > 0 {
			return // settle reports the missing size
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
		panic(r.fail(sizeVar, "set PAIINIT_RANK or PAIINIT_PEERS",
			"%s=%d but nothing tells which of them this container is", sizeVar.name, size))
	}
	first := ranked && rank == 0 || job.Index == 0 && (job.Role == "" || size == 1 || launcherLike(job.Role))
	if !first && max(rank, job.Index) < size {
		panic(r.fail(sizeVar, "set PAIINIT_PEERS", "%s=%d but nothing tells where the others are", sizeVar.name, size))
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
}
