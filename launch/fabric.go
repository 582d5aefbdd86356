package launch

import (
	"path"
	"slices"
	"strings"
)

// Fabric holds what the ranks agreed on about the network between them.
type Fabric struct {
	Kind          string   // FabricVerbs, FabricEFA, FabricTCP, or "" to leave the choice to the launcher
	Ports         []string // this rank's ports for FabricVerbs, such as "mlx5_0:1"
	SamePorts     bool     // every rank has ports of the same names
	Devices       bool     // some rank has verbs devices
	GPUs          bool     // some rank has GPUs
	NetworkDirect bool     // every rank has Azure's Network Direct, which only Intel MPI uses; Kind is FabricTCP then
	Required      bool     // no library may fall back to TCP
	NoPeerMemory  bool     // on some rank processes may not read each other's memory
	ConfigDir     string   // the same on every rank; ucx.conf there holds this rank's [UCXConfig]
	Why           string   // the reason for TCP that the variables quote
}

// The kinds of fabric, by the interface through which libraries use them.
const (
	FabricVerbs = "verbs" // InfiniBand and RoCE
	FabricEFA   = "efa"   // Amazon's, by libfabric
	FabricTCP   = "tcp"
)

// Job returns the variables that are the same on every rank, so that a launcher may carry them to all ranks.
func (f Fabric) Job() []Var {
	return ofAll(func(l *Launcher) func(Fabric) []Var { return l.FabricVariables }, f)
}

// Vars returns all variables, for a command that runs on this rank only, such as a session.
func (f Fabric) Vars() []Var { return slices.Concat(f.Job(), f.Own()) }

// Travelling returns the variables of Own for the launcher args on rank 0. If the ranks' ports have different names,
// rank 0's names must not reach other hosts: a launcher that overrides the environment there gets none of them, and no
// launcher gets UCX's variable, because UCX reads its file.
func (f Fabric) Travelling(args []string) []Var {
	own := f.Own()
	if f.SamePorts {
		return own
	}
	carries := len(args) > 0 && slices.ContainsFunc(launchers, func(l *Launcher) bool {
		return slices.Contains(l.Overrides, path.Base(args[0]))
	})
	return slices.DeleteFunc(own, func(v Var) bool { return carries || v.Name == "UCX_NET_DEVICES" })
}

// UCXConfig returns the content of the file ucx.conf in ConfigDir, "" if no file is needed.
func (f Fabric) UCXConfig() string {
	if f.Kind != FabricVerbs || len(f.Ports) == 0 {
		return ""
	}
	return "UCX_NET_DEVICES=" + strings.Join(f.Ports, ",") + "\n"
}
