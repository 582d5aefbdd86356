package launch

import (
	"path"
	"slices"
	"strings"
)

// Fabric holds what the ranks agreed on about the network between them.
type Fabric struct {
	// Kind is FabricVerbs, FabricEFA, FabricTCP, or "" to leave the choice to the launcher.
	Kind string
	// Ports are this rank's ports for FabricVerbs, such as "mlx5_0:1"; SamePorts says that every rank has the same
	// names.
	Ports     []string
	SamePorts bool
	// Devices says that some rank has verbs devices, GPUs that some rank has GPUs.
	Devices, GPUs bool
	// NetworkDirect says that every rank has Azure's Network Direct, which only Intel MPI can use; Kind is FabricTCP
	// then.
	NetworkDirect bool
	// Required says that no library may fall back to TCP.
	Required bool
	// NoPeerMemory says that on some rank processes may not read each other's memory.
	NoPeerMemory bool
	// ConfigDir is a directory, the same on every rank, with this rank's [UCXConfig] in the file ucx.conf; "" if there
	// is none.
	ConfigDir string
	// Why is the reason for TCP that the variables quote.
	Why string
}

// The kinds of fabric, by the interface through which libraries use them.
const (
	FabricVerbs = "verbs" // InfiniBand and RoCE
	FabricEFA   = "efa"   // Amazon's, by libfabric
	FabricTCP   = "tcp"
)

// Job returns the variables that are the same on every rank, so that a launcher may carry them to all ranks.
func (f Fabric) Job() (vars []Var) {
	for _, l := range launchers {
		if l.FabricVariables != nil {
			vars = append(vars, l.FabricVariables(f)...)
		}
	}
	return vars
}

// Own returns the variables that hold names of this rank's own devices.
func (f Fabric) Own() (vars []Var) {
	for _, l := range launchers {
		if l.FabricOwn != nil {
			vars = append(vars, l.FabricOwn(f)...)
		}
	}
	return vars
}

// OwnVariables returns the variables that name the interface over which this host is reached. Hosts with several
// interfaces set them for their own ranks.
func OwnVariables(network string) (vars []Var) {
	for _, l := range launchers {
		if l.OwnVariables != nil {
			vars = append(vars, l.OwnVariables(network)...)
		}
	}
	return vars
}

// Travelling returns the variables of Own that may be in the environment of the launcher args on rank 0. If the ranks'
// ports have different names, rank 0's names must not reach other hosts: a launcher that overrides the environment
// there gets none of them, and no launcher gets UCX's variable, because UCX reads its file.
func (f Fabric) Travelling(args []string) []Var {
	own := f.Own()
	if f.SamePorts {
		return own
	}
	carries := false
	for _, l := range launchers {
		carries = carries || len(args) > 0 && slices.Contains(l.Overrides, path.Base(args[0]))
	}
	return slices.DeleteFunc(own, func(v Var) bool { return carries || v.Name == "UCX_NET_DEVICES" })
}

// UCXConfig returns the content of the file ucx.conf in ConfigDir, "" if no file is needed.
func (f Fabric) UCXConfig() string {
	if f.Kind != FabricVerbs || len(f.Ports) == 0 {
		return ""
	}
	return "UCX_NET_DEVICES=" + strings.Join(f.Ports, ",") + "\n"
}
