package launch

import "strconv"

// jax returns the variables of jax.distributed.initialize and its wrappers: the coordinator's name is from
// jax/_src/distributed.py, the other two from Kubeflow's JAX runtime.
func jax(t Tasks) []Var {
	if len(t.Ranks) == 0 {
		return nil
	}
	return []Var{
		{"JAX_COORDINATOR_ADDRESS", t.Ranks[0].address(), "jax.distributed.initialize meets on rank 0"},
		{"JAX_NUM_PROCESSES", strconv.Itoa(len(t.Ranks)), "every rank is one process of JAX"},
		{"JAX_PROCESS_ID", strconv.Itoa(t.Self), "number of this process among them"},
	}
}
