package envspec

import (
	"fmt"
	"strconv"
	"strings"
)

// Slurm starts paiinit once per node: srun --ntasks-per-node=1.
// Source: doc/man/man1/srun.1 of github.com/SchedMD/slurm.

func matchSlurm(r *reader) string {
	if name := r.sees("SLURM_JOB_ID"); r.has("SLURM_PROCID", "SLURM_NODEID") {
		return name
	}
	return ""
}

func readSlurm(r *reader, job *Job) {
	r.readID(job, "SLURM_JOB_ID")
	const jobPorts = 64 // jobs share nodes and their network: consecutive ones get different ports
	id, _ := r.get("SLURM_JOB_ID")
	if n, err := strconv.ParseUint(id.value, 10, 64); err == nil {
		r.jobPort = defaultPort + int(n%jobPorts)
		r.note("port", id)
	}
	step, inStep := r.get("SLURM_STEP_ID", "SLURM_STEPID")
	if inStep {
		// A step that starts again, after its job was requeued, must not join what is left of the first run.
		job.Attempt = step.value
		if restart, ok := r.get("SLURM_RESTART_COUNT"); ok {
			job.Attempt += "." + restart.value
		}
		r.note("attempt", step)
	}
	list, ok := r.get("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
	if !ok {
		panic(r.missing("set PAIINIT_PEERS", "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"))
	}
	nodes, problem := expandNodes(list.value)
	r.check(list, problem)
	r.soleRole(job, list)
	r.ownIndex(job, "SLURM_NODEID", "SLURM_PROCID")
	checkOncePerNode(r, job, nodes, list, inStep)
	r.gpusHere("SLURM_GPUS_ON_NODE")
	r.addRole(job, job.Role, nodes, list)
}

// checkOncePerNode refuses several tasks on one node, and the batch script, which runs on the first node only.
func checkOncePerNode(r *reader, job *Job, nodes []string, list variable, inStep bool) {
	if !inStep && len(nodes) > 1 {
		panic(r.wrong(list, "start paiinit with srun --ntasks-per-node=1",
			"%d nodes, but SLURM_STEP_ID is not set: this is the batch script, which runs on one of them", len(nodes)))
	}
	const advice = "use --ntasks-per-node=1"
	if v, ok := r.get("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"); ok && inStep {
		if n := tasksOn(v.value, job.Index); n > 1 {
			panic(r.wrong(v, advice, "started %d times on this node", n))
		}
	}
	r.checkOnce("SLURM_LOCALID", "on this node", advice)
}

// tasksOn returns the number of tasks on a node from a list such as "2(x3),1"; 0 is unknown.
func tasksOn(list string, node int) int {
	for item := range strings.SplitSeq(list, ",") {
		count, times, repeated := strings.Cut(clean(item), "(x")
		n, err := strconv.Atoi(count)
		if err != nil {
			return 0
		}
		k := 1
		if repeated {
			if k, err = strconv.Atoi(strings.TrimSuffix(times, ")")); err != nil {
				return 0
			}
		}
		if node < k {
			return n
		}
		node -= k
	}
	return 0
}

// expandNodes expands Slurm's host lists, such as rack[0-1]n[08-11,15],login1. A range has the width of its lower
// bound. The problem is "" if the list is well-formed.
//
// scontrol (22.05) reads a list without its closing bracket as a name, and refuses text after the last bracket, which
// later versions accept.
func expandNodes(list string) (nodes []string, problem string) {
	begin, depth := 0, false
	for i := 0; i <= len(list); i++ {
		switch {
		case i == len(list) && depth:
			return nil, fmt.Sprintf("missing %q at %d", "]", i+1)
		case i == len(list) || list[i] == ',' && !depth:
			item := clean(list[begin:i])
			begin = i + 1
			if item == "" {
				return nil, fmt.Sprintf("empty name at %d", i+1)
			}
			names, problem := expandNode(item, maxTasks-len(nodes))
			if problem != "" {
				return nil, problem
			}
			nodes = append(nodes, names...)
		case list[i] == '[':
			if depth {
				return nil, fmt.Sprintf("second %q at %d", "[", i+1)
			}
			depth = true
		case list[i] == ']':
			if !depth {
				return nil, fmt.Sprintf("%q without %q at %d", "]", "[", i+1)
			}
			depth = false
		}
	}
	return nodes, ""
}

// expandNode expands one name with balanced brackets to at most most names. The last bracket counts fastest.
func expandNode(item string, most int) (names []string, problem string) {
	names = []string{""}
	for item != "" {
		plain, rest, found := strings.Cut(item, "[")
		ends := []string{""}
		if found {
			var ranges string
			ranges, rest, _ = strings.Cut(rest, "]")
			if ends, problem = expandRanges(ranges, most/len(names)); problem != "" {
				return nil, problem
			}
		}
		next := make([]string, 0, len(names)*len(ends))
		for _, name := range names {
			for _, end := range ends {
				next = append(next, name+plain+end)
			}
		}
		names, item = next, rest
	}
	if len(names) > most {
		return nil, fmt.Sprintf("more than %d nodes", maxTasks)
	}
	return names, ""
}

func expandRanges(ranges string, most int) (list []string, problem string) {
	bad := "invalid range " + quote("["+ranges+"]")
	for part := range strings.SplitSeq(ranges, ",") {
		low, high, isRange := strings.Cut(part, "-")
		if !isRange {
			high = low
		}
		a, errA := strconv.ParseUint(low, 10, 64)
		b, errB := strconv.ParseUint(high, 10, 64)
		if errA != nil || errB != nil || a > b || len(low) > 20 {
			return nil, bad
		}
		if b-a >= uint64(max(most-len(list), 0)) {
			return nil, fmt.Sprintf("more than %d nodes", maxTasks)
		}
		for n := a; ; n++ {
			list = append(list, fmt.Sprintf("%0*d", len(low), n))
			if n == b {
				break
			}
		}
	}
	return list, ""
}
