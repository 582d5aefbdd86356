package launch

import (
	"strconv"
	"strings"
	"time"
)

// openMPI4 is Open MPI 4.0 and 4.1 (ORTE). What the MPI library itself reads (btl, pml) and the two variables for root
// are the same in Open MPI 5.
func openMPI4(l Launcher) []Var {
	var t table
	t.set("OMPI_MCA_plm_rsh_agent", strings.Join(l.Agent, " "), "Open MPI 4 starts its daemons on the other hosts through paiinit")
	t.set("OMPI_MCA_orte_default_hostfile", l.Hostfile, "Open MPI 4 starts on the hosts of this job")
	if l.DottedNames {
		t.set("OMPI_MCA_orte_keep_fqdn_hostnames", "1", "Open MPI 4 keeps host names with dots instead of cutting them at the first")
	}
	t.set("OMPI_MCA_orte_tmpdir_base", l.TempDir, "Open MPI 4 keeps its session directory where this container can write")
	if l.Root {
		t.set("OMPI_ALLOW_RUN_AS_ROOT", "1", "Open MPI refuses to run as root without it")
		t.set("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", "Open MPI refuses to run as root without it")
	}
	if s := killAfter(l.Grace); s > 1 {
		t.set("OMPI_MCA_odls_base_sigkill_timeout", strconv.Itoa(s), "Open MPI 4 gives ranks this many seconds between SIGTERM and SIGKILL instead of 1")
	}
	t.set("OMPI_MCA_oob_tcp_if_include", l.Interface, "Open MPI 4 daemons talk over the network that the hosts share")
	t.set("OMPI_MCA_btl_tcp_if_include", l.Interface, "Open MPI ranks talk over the network that the hosts share")
	if l.Fabric == "tcp" {
		// Exclusions, not "tcp,self,vader": a list of what is left would also take away CUDA's shared memory, and the name of
		// the shared memory component is not the same in 4 and 5.
		t.set("OMPI_MCA_pml", "ob1", "not every host has a usable verbs device: MPI stays off UCX and libfabric")
		t.set("OMPI_MCA_btl", "^openib,uct,ofi,usnic", "not every host has a usable verbs device: MPI stays on TCP and shared memory")
	}
	return t
}

// killAfter returns odls_base_sigkill_timeout in seconds, so that mpirun itself is gone within grace: 4.1.4 always waits
// for the whole time, and twice, whether or not the ranks end earlier (measured: 2n-1 to 2n seconds for n).
func killAfter(grace time.Duration) int {
	return int((grace - time.Second) / (2 * time.Second))
}
