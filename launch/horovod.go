package launch

// horovod is horovodrun. It finds its hosts by -H or --hostfile alone, its remote shell by the name ssh, and its network by
// asking every host; with mpirun below it, that one's variables count. A host with several networks is told which one
// Gloo takes, because the question is answered by name (horovod/runner/driver/driver_service.py).
func horovod(l Launcher) []Var {
	var t table
	if l.Several {
		t.set("HOROVOD_GLOO_IFACE", l.Interface, "Horovod's Gloo talks over the network that the hosts share")
	}
	return t
}
