package envspec

import (
	"strconv"
	"strings"
)

// torchNodes reads the number of nodes. A range is elastic: torchrun would start with fewer nodes, while paiinit waits
// for a fixed number.
func torchNodes(r *reader) (int, variable, error) {
	v, ok := r.get("PET_NNODES")
	if ok {
		low, high, isRange := strings.Cut(v.value, ":")
		if isRange && low != high {
			size, sizeVar, ok, err := r.number(1, maxTasks, "PAIINIT_SIZE")
			if !ok {
				return 0, v, r.fail(v, "set PAIINIT_SIZE", "elastic %s=%s is not supported", v.name, v.shown())
			}
			return size, sizeVar, err
		}
		count := v
		count.value = low
		n, err := r.parseNumber(count, 1, maxTasks)
		return n, v, err
	}
	n, v, ok, err := r.number(1, maxTasks, "PAIINIT_SIZE")
	if ok {
		return n, v, err
	}
	world, v, ok, err := r.number(1, maxTasks, "WORLD_SIZE")
	if err != nil {
		return 0, v, err
	}
	if !ok {
		return 0, v, r.missing("set PAIINIT_SIZE", "PET_NNODES", "WORLD_SIZE")
	}
	if each, _, ok, err := r.number(1, maxTasks, "PET_NPROC_PER_NODE"); ok && err == nil && world%each == 0 {
		world /= each
	}
	return world, v, nil
}

// readTorchSlots reads how many processes torchrun starts here. "auto", "gpu" and "cpu" leave it to countSlots.
func readTorchSlots(r *reader) {
	v, ok := r.get("PET_NPROC_PER_NODE", "NPROC_PER_NODE")
	if !ok {
		return
	}
	if n, err := strconv.Atoi(v.value); err == nil && n > 0 && n <= maxTasks {
		r.eachSlots = slotCount{n, v}
	}
}
