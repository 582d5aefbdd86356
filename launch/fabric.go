package launch

import (
	"path"
	"slices"
	"strings"
)

// Fabric is what the ranks agreed on about the network between them.
type Fabric struct {
	// Kind is FabricVerbs, FabricEFA, FabricTCP, or "" to leave everything to the launcher.
	Kind string
	// Ports are this rank's for FabricVerbs, as "mlx5_0:1"; SamePorts says that they have the same names on every rank.
	Ports     []string
	SamePorts bool
	// Devices says that some rank has verbs devices, GPUs that some rank has GPUs.
	Devices, GPUs bool
	// NetworkDirect says that every rank has Azure's Network Direct, which only Intel MPI can use; Kind is FabricTCP
	// then.
	NetworkDirect bool
	// Required says that no library may fall back to TCP by itself.
	Required bool
	// NoPeerMemory says that on some rank processes may not read each other's memory.
	NoPeerMemory bool
	// ConfigDir is a directory with this rank's [UCXConfig] in a file ucx.conf, at the same place on every rank; may be "".
	ConfigDir string
	// Why is the reason to give for TCP.
	Why string
}

// The kinds of fabric, by how libraries speak to them.
const (
	FabricVerbs = "verbs" // InfiniBand and RoCE
	FabricEFA   = "efa"   // Amazon's, by libfabric
	FabricTCP   = "tcp"
)

// Job returns the variables that are the same on every rank. They can travel with a launcher's environment.
func (f Fabric) Job() []Var {
	var t table
	switch f.Kind {
	case FabricVerbs:
		t.set("OMPI_MCA_btl", "^openib", "Open MPI 4 speaks to verbs devices through UCX; its openib only warns")
		t.set("UCX_CONFIG_DIR", f.ConfigDir, "UCX 1.12 and later reads there which ports this rank shares with all others")
		if f.Required {
			t.set("OMPI_MCA_pml", "ucx", "RDMA is required: Open MPI fails rather than fall back to TCP")
			t.set("I_MPI_FABRICS", "shm:ofi", "RDMA is required: Intel MPI speaks through libfabric")
			t.set("I_MPI_OFI_PROVIDER", "mlx", "RDMA is required: Intel MPI fails rather than fall back to TCP")
		}
	case FabricEFA:
		t.set("FI_PROVIDER", "efa", "every rank has Amazon's EFA")
		t.set("OMPI_MCA_btl", "^openib", "Open MPI 4 speaks to EFA through libfabric; its openib only warns")
		if f.Required {
			t.set("OMPI_MCA_pml", "cm", "RDMA is required: Open MPI speaks through libfabric, and fails rather than fall back to TCP")
			t.set("OMPI_MCA_mtl", "ofi", "RDMA is required: Open MPI speaks through libfabric, and fails rather than fall back to TCP")
		}
	case FabricTCP:
		// Exclusions, not "tcp,self,vader": a list of what is left would also take away CUDA's shared memory, and the name of
		// the shared memory component is not the same in 4 and 5.
		t.set("OMPI_MCA_pml", "ob1", f.Why+": MPI stays off UCX and libfabric")
		t.set("OMPI_MCA_btl", "^openib,uct,ofi,usnic", f.Why+": MPI stays on TCP and shared memory")
		if f.Devices {
			tls := "tcp,self,sm"
			if f.GPUs {
				tls += ",cuda_copy"
			}
			t.set("UCX_TLS", tls, f.Why+": UCX (MPICH) stays on TCP and shared memory")
			t.set("FI_PROVIDER", "tcp", f.Why+": libfabric (MPICH, Intel MPI) stays on TCP")
			t.set("NCCL_IB_DISABLE", "1", f.Why+": NCCL stays on TCP")
		}
	}
	if f.NetworkDirect {
		const why = "every rank has Azure's Network Direct: Intel MPI speaks through DAPL"
		t.set("I_MPI_FABRICS", "shm:dapl", why)
		t.set("I_MPI_DAPL_PROVIDER", "ofa-v2-ib0", why)
		t.set("I_MPI_DYNAMIC_CONNECTION", "0", why)
		if f.Required {
			t.set("I_MPI_FALLBACK", "0", "RDMA is required: Intel MPI fails rather than fall back to TCP")
		}
	}
	if f.NoPeerMemory {
		t.set("OMPI_MCA_btl_vader_single_copy_mechanism", "none", "processes may not read each other's memory here: Open MPI 4 would print errors (Read -1, expected ...)")
		t.set("OMPI_MCA_smsc", "^cma", "processes may not read each other's memory here: Open MPI 5 copies another way")
	}
	return t
}

// Own returns the variables that hold names of this rank's own devices.
func (f Fabric) Own() []Var {
	var t table
	if f.Kind == FabricVerbs {
		ports := strings.Join(f.Ports, ",")
		t.set("UCX_NET_DEVICES", ports, "the ports of this rank that all ranks can reach")
		t.set("NCCL_IB_HCA", "="+ports, "the ports of this rank that all ranks can reach")
	}
	return t
}

// Travelling returns those of Own that may be in the environment of the launcher args on rank 0. Where ranks call their ports
// differently, a launcher must not carry rank 0's names to other hosts: Open MPI's does not, MPICH's hydra does (4.0.2: the
// environment of mpiexec wins over that of its proxies, which have their own rank's from their session). So hydra gets none,
// and UCX, which reads its file, none either.
func (f Fabric) Travelling(args []string) []Var {
	own := f.Own()
	if f.SamePorts {
		return own
	}
	hydra := len(args) > 0 && slices.Contains([]string{"mpiexec", "mpiexec.hydra", "mpiexec.mpich", "mpirun.mpich"}, path.Base(args[0]))
	return slices.DeleteFunc(own, func(v Var) bool { return hydra || v.Name == "UCX_NET_DEVICES" })
}

// UCXConfig is the content of the file ucx.conf in ConfigDir, "" if there is none to write.
func (f Fabric) UCXConfig() string {
	if f.Kind != FabricVerbs || len(f.Ports) == 0 {
		return ""
	}
	return "UCX_NET_DEVICES=" + strings.Join(f.Ports, ",") + "\n"
}
