package envspec

import (
	"strconv"
	"strings"
)

// Source: pkg/runtime/framework/plugins/torch of github.com/kubeflow/trainer.

func matchTrainJob(r *reader) string {
	if r.has("JOB_COMPLETION_INDEX") && !r.has("MASTER_ADDR") {
		return r.sees("PET_NODE_RANK")
	}
	return ""
}

// readTrainJob reads a pod JOB-node-0-INDEX.
func readTrainJob(r *reader, job *Job) error {
	rank, _ := r.get("PET_NODE_RANK")
	if err := r.soleRole(job, rank); err != nil {
		return err
	}
	if !r.has("PAIINIT_ROLE") {
		job.Role = "node"
	}
	if err := r.ownIndex(job, "PET_NODE_RANK", "JOB_COMPLETION_INDEX"); err != nil {
		return err
	}
	size, sizeVar, err := torchNodes(r)
	if err != nil {
		return err
	}
	r.note("size", sizeVar)
	readTorchSlots(r)
	stem, service := "", ""
	v, ok := r.get("PET_MASTER_ADDR")
	if ok {
		first, rest, _ := strings.Cut(v.value, ".")
		stem, _ = strings.CutSuffix(first, "-0")
		service, _, _ = strings.Cut(rest, ".")
	} else if v, ok = r.podName(); ok { // torchtune gets no master
		var index int
		if stem, index, ok = splitAlias(v.value); !ok || index != job.Index {
			stem = ""
		}
		service, _, _ = strings.Cut(stem, "-node-0")
	}
	if stem == "" || service == "" {
		if size == 1 {
			return r.addRole(job, job.Role, []string{""}, sizeVar)
		}
		if v.name == "" {
			return r.missing("set PAIINIT_PEERS", "PET_MASTER_ADDR", "HOSTNAME")
		}
		return r.bad(v, "set PAIINIT_PEERS",
			"is not JOB-node-0-NUMBER, by which the pods of a TrainJob find each other")
	}
	id, _ := strings.CutSuffix(stem, "-node-0")
	r.jobID(job, id, v)
	hosts := make([]string, size)
	for i := range hosts {
		hosts[i] = stem + "-" + strconv.Itoa(i) + "." + service
	}
	if err := r.addRole(job, job.Role, hosts, v); err != nil {
		return err
	}
	r.counts[job.Role] = sizeVar
	return nil
}
