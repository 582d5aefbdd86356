package envspec

import "strings"

// Source: pkg/controller.v1/pytorch of github.com/kubeflow/training-operator (v1.9).

func matchPyTorchJob(r *reader) string {
	if r.has("PET_NODE_RANK", "PET_NNODES") && r.has("MASTER_ADDR", "PET_MASTER_ADDR", "PET_RDZV_ENDPOINT") {
		return r.sees("PET_NODE_RANK", "PET_NNODES")
	}
	return ""
}

// readPyTorchJob reads a master or worker. RANK and PET_NODE_RANK count pods, WORLD_SIZE processes.
func readPyTorchJob(r *reader, job *Job) {
	r.inPod = true
	size, sizeVar := torchNodes(r)
	r.note("size", sizeVar)
	master, hasMaster := r.get("MASTER_ADDR", "PET_MASTER_ADDR")
	if !hasMaster {
		readElasticPyTorchJob(r, job, size, sizeVar)
		return
	}
	rank, v := r.needNumber("set PAIINIT_RANK", 0, maxTasks, "PET_NODE_RANK", "RANK")
	if rank >= size {
		panic(r.bad(v, "", "is outside 0..%d (%s=%s)", size-1, sizeVar.name, quotePlain(sizeVar.value)))
	}
	job.Role, job.Index = "master", 0
	if rank > 0 {
		job.Role, job.Index = defaultRole, rank-1
	}
	r.note("role", v)
	r.note("index", v)
	r.countRole(job, "master", 1, sizeVar)
	r.countRole(job, defaultRole, size-1, sizeVar)
	readTorchSlots(r)
	host, hostVar := master.value, master
	if host == "localhost" || host == "127.0.0.1" { // what releases up to 1.3 give the master
		if rank != 0 {
			panic(r.bad(master, "", "but %s=%d is not the master", v.name, rank))
		}
		hostVar = r.podName()
		host = hostVar.value
	}
	if id, ok := strings.CutSuffix(host, "-master-0"); ok {
		r.jobID(job, id, hostVar)
	}
	if size > 1 && (rank > 0 || checkHost(host) == "") {
		r.addSeed(job, host, hostVar)
	}
}

// readElasticPyTorchJob reads a job without a master. Only the pod's name tells which worker this is.
func readElasticPyTorchJob(r *reader, job *Job, size int, sizeVar variable) {
	endpoint := r.need("set PAIINIT_PEERS", "MASTER_ADDR", "PET_RDZV_ENDPOINT")
	hp := r.place(endpoint, endpoint.value)
	r.soleRole(job, endpoint)
	name := r.podName()
	stem, index, numbered := splitAlias(name.value)
	switch {
	case r.has("PAIINIT_INDEX"):
		r.ownIndex(job)
	case name.name == "":
		panic(r.missing("set PAIINIT_INDEX", "HOSTNAME"))
	case !numbered || !strings.HasPrefix(hp.host, stem+"-0"):
		panic(r.bad(name, "set PAIINIT_INDEX", "is not the name of a worker like that of %s=%s", endpoint.name,
			quote(endpoint.value)))
	default:
		job.Index = index
		r.note("index", name)
	}
	r.countRole(job, job.Role, size, sizeVar)
	readTorchSlots(r)
	r.addSeed(job, hp.host, endpoint)
}
