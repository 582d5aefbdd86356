package envspec

// Variables that torchrun's users set by hand. Alibaba's PAI-DLC, PyTorchJob before 1.5 and Volcano's pytorch plugin
// set them as well. All of them count containers.

func matchTorchrun(r *reader) string {
	if r.has("RANK", "NODE_RANK") && r.has("WORLD_SIZE", "NNODES", "NUM_NODES") {
		return r.sees("MASTER_ADDR")
	}
	return ""
}

func readTorchrun(r *reader, job *Job) {
	r.checkOnce("LOCAL_RANK", "in this container", "start paiinit once per container")
	readTorchSlots(r)
	readKnownMaster(r, job, []string{"MASTER_ADDR"}, []string{"NODE_RANK", "RANK"},
		[]string{"NNODES", "NUM_NODES", "WORLD_SIZE"}, "")
}
