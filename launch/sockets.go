package launch

import "strings"

// sockets holds the variables of collective libraries on a host with several networks: NCCL and Gloo under any
// launcher, UCX and libfabric under MPI.
var sockets = Launcher{
	Name:      "NCCL, Gloo",
	Variables: socketVariables,
	Choices: []choice{
		{"NCCL_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME --network-interface --network-interfaces"},
		{"GLOO_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"},
		{"TP_SOCKET_IFNAME", "TP_SOCKET_IFNAME"},
		{"NCCL_IB_HCA", "NCCL_IB_HCA"},
		{"NCCL_IB_DISABLE", "NCCL_IB_DISABLE"},
		{"UCX_NET_DEVICES", "UCX_NET_DEVICES"},
		{"UCX_TLS", "UCX_TLS"},
		{"UCX_CONFIG_DIR", "UCX_NET_DEVICES"},
	},
	Files: choiceFiles{
		home: ".nccl.conf ucx.conf", conf: "nccl.conf ucx/ucx.conf", dir: "ucx.conf", variables: "NCCL_CONF_FILE",
	},
	FabricVariables: socketsFabric,
}

func socketVariables(l Setup) []Var {
	if !l.Several {
		return nil
	}
	return OwnVariables(l.Interface)
}

// OwnVariables returns the variables that name the interface over which this host is reached; hosts with several set
// them for their own ranks. NCCL uses it for its bootstrap and sockets, Gloo and TensorPipe (PyTorch) for everything.
func OwnVariables(network string) []Var {
	var t table
	t.set("NCCL_SOCKET_IFNAME", network, "NCCL meets over the network that the hosts share")
	t.set("GLOO_SOCKET_IFNAME", network, "Gloo talks over the network that the hosts share")
	t.set("TP_SOCKET_IFNAME", network, "TensorPipe talks over the network that the hosts share")
	return t
}

func socketsFabric(f Fabric) []Var {
	var t table
	switch {
	case f.Kind == FabricVerbs:
		const why = "UCX 1.12 and later reads from ucx.conf there which ports all ranks can reach"
		t.set("UCX_CONFIG_DIR", f.ConfigDir, why)
	case f.Kind == FabricEFA:
		t.set("FI_PROVIDER", "efa", "every rank has Amazon's EFA")
	case f.Kind == FabricTCP && f.Devices:
		tls := "tcp,self,sm"
		if f.GPUs {
			tls += ",cuda_copy"
		}
		t.set("UCX_TLS", tls, f.Why+": UCX (MPICH) stays on TCP and shared memory")
		t.set("FI_PROVIDER", "tcp", f.Why+": libfabric (MPICH, Intel MPI) stays on TCP")
		t.set("NCCL_IB_DISABLE", "1", f.Why+": NCCL stays on TCP")
	}
	return t
}

// Own returns the variables that hold names of this rank's own devices.
func (f Fabric) Own() []Var {
	if f.Kind != FabricVerbs {
		return nil
	}
	const why = "the ports of this rank that all ranks can reach"
	ports := strings.Join(f.Ports, ",")
	var t table
	t.set("UCX_NET_DEVICES", ports, why)
	t.set("NCCL_IB_HCA", "="+ports, why)
	return t
}
