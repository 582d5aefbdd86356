package launch

// sockets is what collective libraries under any launcher need to know on a host with several networks.
var sockets = Launcher{Name: "NCCL, Gloo", Variables: socketVariables}

func socketVariables(l Setup) []Var {
	if !l.Several {
		return nil
	}
	return Sockets(l.Interface)
}

// Sockets names the network interface over which this host reaches the others, for a host that has several. NCCL reads the name
// for its bootstrap and for sockets, Gloo and TensorPipe under PyTorch for everything.
func Sockets(name string) []Var {
	var t table
	t.set("NCCL_SOCKET_IFNAME", name, "NCCL meets over the network that the hosts share")
	t.set("GLOO_SOCKET_IFNAME", name, "Gloo talks over the network that the hosts share")
	t.set("TP_SOCKET_IFNAME", name, "TensorPipe talks over the network that the hosts share")
	return t
}
