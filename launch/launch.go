// Package launch knows what each launcher wants in its environment, finds the user's command, and runs it.
//
// The user's command line is never touched. `mpirun python train.py` stays as it is; which hosts there are and how to
// reach them is told by environment variables, for every launcher and every version at once, because a shell script
// around the launcher cannot be looked into. A launcher is one file with one [Launcher] value; [Environment] puts their
// variables together.
//
// [Run] runs one command to its end in a process group of its own, and returns how it ended: it passes signals on,
// stops the group when it is told to, and takes away what the command left behind in its group. A [Supervisor] watches
// the command from plain events, and judges its end; a [Stopper] stops a launcher by its ranks first.
//
// The package does not guess: it does not look for hosts, does not read its own process's environment, writes no files,
// runs nothing but the given command and launchers for their versions, and does not reach processes that left the group
// (the init does).
package launch

import (
	"fmt"
	"path"
	"strings"
)

// Setup holds what the launchers' variables are made of. The zero value of a field leaves out what depends on it.
type Setup struct {
	// Hostfile is the path of the host list in the form "name slots=n" (Open MPI). It must exist on this host only.
	Hostfile string
	// CountedHostfile is the path of the host list in the form "name:n" (MPICH, Intel MPI).
	CountedHostfile string
	// Agent are the words of the remote-shell agent for Open MPI, the first of them an absolute path. The launcher calls it
	// on every host of its spawn tree, so the path must be the same everywhere.
	Agent []string
	// AgentPath is the remote-shell agent for launchers that take one path and no words (MPICH, Intel MPI).
	AgentPath string
	// Interface is the network interface over which the hosts reach each other, under the same name on every host.
	Interface string
	// Several says that this host has other interfaces beside it, among which the launchers might choose the wrong one.
	Several bool
	// Network is the network that holds the addresses of all hosts, as "10.0.0.0/24"; only needed where a host has several.
	Network string
	// TempDir is where Open MPI's daemons keep their session directories on every host; "" for their own choice, TMPDIR or /tmp.
	TempDir string
	// Root says that the launcher will run as uid 0.
	Root bool
}

// Var is one environment variable and why it is set, or removed.
type Var struct {
	Name, Value string
	// Reason is one line for people: what the variable makes the launcher do.
	Reason string
}

// Environment returns the variables for all launchers. [Setup.Check] says beforehand whether s can be expressed.
func Environment(s Setup) []Var {
	var vars []Var
	for _, l := range launchers {
		if l.Variables != nil {
			vars = append(vars, l.Variables(s)...)
		}
	}
	return vars
}

// Check returns an error if a value of l would not survive its way: Open MPI splits the agent at blanks and colons,
// without any quoting, and hands it and the host list on to other hosts inside a shell command.
func (l Setup) Check() error {
	for i, w := range l.Agent {
		if !plain(w) {
			return fmt.Errorf("launch: agent word %q: only letters, digits and any of %q can be passed through Open MPI", w, plainExtra)
		}
		if i == 0 && !path.IsAbs(w) {
			return fmt.Errorf("launch: agent %q: not an absolute path", w)
		}
	}
	if l.AgentPath != "" && (!path.IsAbs(l.AgentPath) || !plain(l.AgentPath)) {
		return fmt.Errorf("launch: agent %q: want an absolute path of letters, digits and any of %q", l.AgentPath, plainExtra)
	}
	for _, f := range []string{l.Hostfile, l.CountedHostfile} {
		if f != "" && (!path.IsAbs(f) || !plain(f)) {
			return fmt.Errorf("launch: hostfile %q: want an absolute path of letters, digits and any of %q", f, plainExtra)
		}
	}
	if l.TempDir != "" && (!path.IsAbs(l.TempDir) || !plain(l.TempDir)) {
		return fmt.Errorf("launch: directory %q: want an absolute path of letters, digits and any of %q", l.TempDir, plainExtra)
	}
	if l.Interface != "" && (!plain(l.Interface) || strings.ContainsAny(l.Interface, "/,")) {
		return fmt.Errorf("launch: interface %q: not the name of a network interface", l.Interface)
	}
	if l.Network != "" && (!plain(l.Network) || !strings.Contains(l.Network, "/") || strings.Contains(l.Network, ",")) {
		return fmt.Errorf("launch: network %q: want the form 10.0.0.0/24", l.Network)
	}
	return nil
}

// plainExtra are the characters beside letters and digits that no launcher and no shell gives a meaning.
const plainExtra = "_./+,=@%-"

func plain(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte(plainExtra, c) >= 0 {
			continue
		}
		return false
	}
	return s != ""
}

// Merge adds vars to environ. A variable that environ already has, even with an empty value, stays as the user set it;
// kept lists those whose value differs from ours, with the user's value and our reason. environ is not modified.
func Merge(environ []string, vars []Var) (out []string, kept []Var) {
	have := make(map[string]string, len(environ))
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		// Of a name given twice, getenv takes the first (glibc, musl, Go, Python).
		if _, twice := have[name]; !twice {
			have[name] = value
		}
	}
	out = append(make([]string, 0, len(environ)+len(vars)), environ...)
	for _, v := range vars {
		user, set := have[v.Name]
		switch {
		case !set:
			out = append(out, v.Name+"="+v.Value)
			have[v.Name] = v.Value
		case user != v.Value:
			kept = append(kept, Var{v.Name, user, v.Reason})
		}
	}
	return out, kept
}

// Leftovers returns the variables of environ by which a launcher would believe itself inside another scheduler's
// allocation and ignore our host list. They belong removed from the environment of a launcher, see [Without].
//
// Only the few variables that switch a launcher over are listed; the rest of a scheduler's variables stay, programs
// read them.
func Leftovers(environ []string) []Var {
	var found []Var
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		if name == "MASTER_PORT" && strings.Contains(value, "://") {
			found = append(found, Var{name, value, "it is the link to a Kubernetes Service called master, not a port"})
		}
		if reason := foreignReason(name); reason != "" {
			found = append(found, Var{name, value, reason})
		}
	}
	return found
}

// foreignReason is what the first launcher that a variable switches over would do; "" if it switches none.
func foreignReason(variable string) string {
	for _, l := range launchers {
		for _, f := range l.Foreign {
			if f.Name == variable {
				return f.Reason
			}
		}
	}
	return ""
}

// Without returns environ without the variables named in vars. environ is not modified.
func Without(environ []string, vars []Var) []string {
	drop := make(map[string]bool, len(vars))
	for _, v := range vars {
		drop[v.Name] = true
	}
	out := make([]string, 0, len(environ))
	for _, kv := range environ {
		if name, _, _ := strings.Cut(kv, "="); !drop[name] {
			out = append(out, kv)
		}
	}
	return out
}

// table collects variables whose value is not empty.
type table []Var

// Inlined into its callers, set would make the program 16 kB bigger.
//
//go:noinline
func (t *table) set(name, value, reason string) {
	if value != "" {
		*t = append(*t, Var{name, value, reason})
	}
}
