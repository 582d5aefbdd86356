package envspec

import (
	"strconv"
	"strings"
)

// torchNodes reads the number of nodes. A range is elastic: torchrun would start with fewer nodes, while paiinit waits
// for a fixed number.
func torchNodes(r *reader) (int, variable) {
	nodes, ok := r.get("PET_NNODES")
	low, high, isRange := strings.Cut(nodes.value, ":")
	elastic := isRange && low != high
	if ok && !elastic {
		return r.parseNumber(variable{name: nodes.name, value: low}, 1, maxTasks), nodes
	}
	n, v, ok := r.number(1, maxTasks, "PAIINIT_SIZE")
	switch {
	case ok:
		return n, v
	case elastic:
		panic(r.fail(nodes, "set PAIINIT_SIZE", "elastic %s=%s is not supported", nodes.name, nodes.shown()))
	}
	world, v, ok := r.number(1, maxTasks, "WORLD_SIZE")
	if !ok {
		panic(r.missing("set PAIINIT_SIZE", "PET_NNODES", "WORLD_SIZE"))
	}
	processes, _ := r.get("PET_NPROC_PER_NODE")
	if each, _ := strconv.Atoi(processes.value); each > 0 && each <= maxTasks && world%each == 0 {
		world /= each
	}
	return world, v
}

// readTorchSlots reads how many processes torchrun starts here. "auto", "gpu" and "cpu" leave it to countSlots.
func readTorchSlots(r *reader) {
	v, _ := r.get("PET_NPROC_PER_NODE", "NPROC_PER_NODE")
	if n, err := strconv.Atoi(v.value); err == nil && n > 0 && n <= maxTasks {
		r.eachSlots = slotCount{n, v}
	}
}
