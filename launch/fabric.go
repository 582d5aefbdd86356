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
	// ConfigDir is a directory with this rank's [UCXConfig] in a file ucx.conf, at the same place on every rank; may be
	// "".
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

// OwnVariables returns what every rank is told by its own host about the interface over which it is reached, for a host
// that has several.
func OwnVariables(network string) (vars []Var) {
	for _, l := range launchers {
		if l.OwnVariables != nil {
			vars = append(vars, l.OwnVariables(network)...)
		}
	}
	return vars
}

// Travelling returns those of Own that may be in the environment of the launcher args on rank 0. Where ranks call their
// ports differently, a launcher must not carry rank 0's names to other hosts, as some do. Those get none, and UCX,
// which reads its file, none either.
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

// UCXConfig is the content of the file ucx.conf in ConfigDir, "" if there is none to write.
func (f Fabric) UCXConfig() string {
	if f.Kind != FabricVerbs || len(f.Ports) == 0 {
		return ""
	}
	return "UCX_NET_DEVICES=" + strings.Join(f.Ports, ",") + "\n"
}
