package envspec

import "strings"

// Source: pkg/runtime/framework/plugins/torch of github.com/kubeflow/trainer.

func matchTrainJob(r *reader) string {
	if r.has("JOB_COMPLETION_INDEX") && !r.has("MASTER_ADDR") {
		return r.sees("PET_NODE_RANK")
	}
	return ""
}

// readTrainJob reads a pod JOB-node-0-INDEX.
func readTrainJob(r *reader, job *Job) {
	rank, _ := r.get("PET_NODE_RANK")
	r.soleRole(job, rank)
	if !r.has("PAIINIT_ROLE") {
		job.Role = "node"
	}
	r.ownIndex(job, "PET_NODE_RANK", "JOB_COMPLETION_INDEX")
	size, sizeVar := torchNodes(r)
	r.note("size", sizeVar)
	readTorchSlots(r)
	var stem, service string
	v, ok := r.get("PET_MASTER_ADDR")
	if ok {
		first, rest, _ := strings.Cut(v.value, ".")
		stem = strings.TrimSuffix(first, "-0")
		service, _, _ = strings.Cut(rest, ".")
	} else { // torchtune gets no master
		v = r.podName()
		if name, index, numbered := splitAlias(v.value); numbered && index == job.Index {
			stem = name
		}
		service, _, _ = strings.Cut(stem, "-node-0")
	}
	switch known := stem != "" && service != ""; {
	case !known && size == 1:
		r.addRole(job, job.Role, []string{""}, sizeVar)
		return
	case v.name == "":
		panic(r.missing("set PAIINIT_PEERS", "PET_MASTER_ADDR", "HOSTNAME"))
	case !known:
		panic(r.bad(v, "set PAIINIT_PEERS",
			"is not JOB-node-0-NUMBER, by which the pods of a TrainJob find each other"))
	}
	r.jobID(job, strings.TrimSuffix(stem, "-node-0"), v)
	hosts := make([]string, size)
	for i := range hosts {
		hosts[i] = alias(stem, i) + "." + service
	}
	r.addHosts(job, hosts, v, sizeVar)
}
