package launch

import "strconv"

// psLite returns the variables of MXNet's ps-lite (docs/env.md there). It needs a scheduler and servers, so the
// variables are set only if the roles name both.
func psLite(t Tasks) []Var {
	var scheduler *Task
	count := map[string]int{}
	for i := range t.Ranks {
		k := kind(t.Ranks[i].Role)
		count[k]++
		if k == "scheduler" && scheduler == nil {
			scheduler = &t.Ranks[i]
		}
	}
	if scheduler == nil || count["ps"] == 0 {
		return nil
	}
	role := "worker"
	switch kind(t.Ranks[t.Self].Role) {
	case "ps":
		role = "server"
	case "scheduler":
		role = "scheduler"
	}
	workers := len(t.Ranks) - count["ps"] - count["scheduler"]
	const reason = "all parts of MXNet find the scheduler"
	return []Var{
		{"DMLC_ROLE", role, "role of this rank in MXNet"},
		{"DMLC_PS_ROOT_URI", scheduler.Addr, reason},
		{"DMLC_PS_ROOT_PORT", strconv.Itoa(scheduler.Port), reason},
		{"DMLC_NUM_SERVER", strconv.Itoa(count["ps"]), "number of servers that MXNet waits for"},
		{"DMLC_NUM_WORKER", strconv.Itoa(workers), "number of workers that MXNet waits for"},
		{"DMLC_NODE_HOST", t.Ranks[t.Self].Addr, "address at which the others reach this process"},
	}
}
