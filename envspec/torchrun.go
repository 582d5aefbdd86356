package envspec

// What torchrun's users set by hand, and others set for them: Alibaba's PAI-DLC, PyTorchJob before its 1.5, Volcano's
// pytorch plugin. All of them count containers.

func matchTorchrun(r *reader) string {
	if r.has("RANK", "NODE_RANK") && r.has("WORLD_SIZE", "NNODES", "NUM_NODES") {
		return r.sees("MASTER_ADDR")
	}
	return ""
}

func readTorchrun(r *reader, job *Job) error {
	if n, v, ok, err := r.number(0, maxTasks, "LOCAL_RANK"); ok && (err != nil || n > 0) {
		return r.fail(v, "start paiinit once per container", "%s=%s: started more than once in this container", v.name, quotePlain(v.value))
	}
	r.torchSlots(job)
	return r.knownMaster(job, []string{"MASTER_ADDR"}, []string{"NODE_RANK", "RANK"}, []string{"NNODES", "NUM_NODES", "WORLD_SIZE"}, "")
}

// knownMaster reads containers that are told their number, how many there are, and where the first one is.
func (r *reader) knownMaster(job *Job, master, rank, count []string, gpus string) error {
	size, sizeVar, ok, err := r.number(1, maxTasks, append([]string{"PAIINIT_SIZE"}, count...)...)
	switch {
	case err != nil:
		return err
	case !ok:
		return r.missing("set PAIINIT_SIZE", count...)
	}
	if err := r.soleRole(job, sizeVar); err != nil {
		return err
	}
	if size == 1 && !r.has(append(rank, "PAIINIT_INDEX")...) {
		job.Index = 0
		r.note("index", sizeVar)
	} else if err := r.ownIndex(job, rank...); err != nil {
		return err
	}
	r.countRole(job, job.Role, size, sizeVar)
	if gpus != "" {
		r.gpusEach(job, gpus)
	}
	v, ok := r.get(master...)
	if size == 1 {
		return nil
	}
	if !ok {
		return r.missing("set PAIINIT_PEERS", master...)
	}
	if v.value == "localhost" || v.value == "127.0.0.1" {
		if job.Index > 0 {
			return r.bad(v, "", "but this container is not the first (%s)", r.sources["index"])
		}
		return nil
	}
	return r.addSeed(job, v.value, v)
}
