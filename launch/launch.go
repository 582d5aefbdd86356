// Package launch runs the command of a job and hides how launchers differ from each other.
//
// A launcher is one file with one [Launcher] value, and one entry in the list of launchers. The value says which
// programs and environment variables belong to the launcher, how to read its version and its command line, which
// daemons it starts on other hosts, how it fails, and how it is stopped. No other code names a launcher. [Environment]
// returns the variables of all launchers: they are all set, because the command may be a script, and nothing tells
// which launcher it calls. The command line itself stays as the user wrote it.
//
// [Run] runs one command in a process group of its own until it ends: it passes signals on, stops the group on request,
// and removes the processes that the command left in it. A [Supervisor] receives events while a launcher runs, ends a
// launcher that cannot go on, and judges how the job ended; [Sessions] holds what is known of the launcher's sessions
// to other hosts, and [Asks] what its command line asked for. A [Stopper] stops the ranks before their launcher. A
// [Verdict] judges a job in which every rank runs the command.
//
// The package searches for no hosts, does not read the environment of its own process, writes no files, and sends
// nothing over the network. It runs the given command, and launchers to read their versions. It never reads the user's
// scripts to find out which launcher they call.
package launch

import (
	"fmt"
	"path"
	"strings"
)

// Setup holds the values from which the launchers' variables are made. If a field is empty, the variables that need it
// are left out.
type Setup struct {
	// Hostfile is the path of the host list in the form "name slots=n" (Open MPI). It must exist on this host only.
	Hostfile string
	// CountedHostfile is the path of the host list in the form "name:n" (MPICH, Intel MPI).
	CountedHostfile string
	// Agent holds the words of the remote-shell agent for Open MPI; the first is an absolute path. The path must be the
	// same on all hosts, because the launcher calls the agent on every host of its spawn tree.
	Agent []string
	// AgentPath is the remote-shell agent for launchers that take a path without arguments (MPICH, Intel MPI).
	AgentPath string
	// Interface is the network interface over which the hosts reach each other; it has the same name on every host.
	Interface string
	// Several says that this host has more interfaces, so that a launcher might choose the wrong one.
	Several bool
	// Network is the network that holds the addresses of all hosts, as "10.0.0.0/24". It is only needed if a host has
	// several interfaces.
	Network string
	// TempDir is the directory for the session directories of Open MPI's daemons on every host; "" lets them use TMPDIR
	// or /tmp.
	TempDir string
	// Root says that the launcher will run as uid 0.
	Root bool
}

// Var is an environment variable that is set or removed, and the reason.
type Var struct {
	Name, Value string
	// Reason says in one line what the variable makes the launcher do.
	Reason string
}

// Environment returns the variables of all launchers. Call [Setup.Check] first: it tells whether these variables can
// hold the values of s.
func Environment(s Setup) []Var {
	var vars []Var
	for _, l := range launchers {
		if l.Variables != nil {
			vars = append(vars, l.Variables(s)...)
		}
	}
	return vars
}

// Check returns an error if a value of l cannot be passed through a launcher: Open MPI splits the agent at blanks and
// colons, knows no quoting, and passes the agent and the host list to other hosts inside a shell command.
func (l Setup) Check() error {
	for i, w := range l.Agent {
		if !plain(w) {
			return fmt.Errorf("agent word %q: only letters, digits and any of %q can be passed through Open MPI",
				w, plainExtra)
		}
		if i == 0 && !path.IsAbs(w) {
			return fmt.Errorf("agent %q: not an absolute path", w)
		}
	}
	if l.AgentPath != "" && (!path.IsAbs(l.AgentPath) || !plain(l.AgentPath)) {
		return notPlain("agent", l.AgentPath)
	}
	for _, f := range []string{l.Hostfile, l.CountedHostfile} {
		if f != "" && (!path.IsAbs(f) || !plain(f)) {
			return notPlain("hostfile", f)
		}
	}
	if l.TempDir != "" && (!path.IsAbs(l.TempDir) || !plain(l.TempDir)) {
		return notPlain("directory", l.TempDir)
	}
	if l.Interface != "" && (!plain(l.Interface) || strings.ContainsAny(l.Interface, "/,")) {
		return fmt.Errorf("interface %q: not the name of a network interface", l.Interface)
	}
	if l.Network != "" && (!plain(l.Network) || !strings.Contains(l.Network, "/") || strings.Contains(l.Network, ",")) {
		return fmt.Errorf("network %q: want the form 10.0.0.0/24", l.Network)
	}
	return nil
}

func notPlain(what, value string) error {
	return fmt.Errorf("%s %q: want an absolute path of letters, digits and any of %q", what, value, plainExtra)
}

// plainExtra holds the characters, beside letters and digits, that have no meaning for any launcher or shell.
const plainExtra = "_./+,=@%-"

func plain(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
			strings.IndexByte(plainExtra, c) >= 0 {
			continue
		}
		return false
	}
	return s != ""
}

// Merge adds vars to environ. A variable that environ already has stays as the user set it, even if it is empty. kept
// lists the variables whose value differs from ours, with the user's value and our reason. environ is not modified.
func Merge(environ []string, vars []Var) (out []string, kept []Var) {
	have := make(map[string]string, len(environ))
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		// If a name occurs twice, getenv returns the first value (glibc, musl, Go, Python).
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

// Leftovers returns the variables of environ that would make a launcher believe that it runs inside another scheduler's
// allocation and ignore our host list. [Without] removes them from the environment of a launcher.
//
// It returns only the variables that cause this; the other variables of a scheduler stay, because programs read them.
func Leftovers(environ []string) []Var {
	var found []Var
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		if name == "MASTER_PORT" && strings.Contains(value, "://") {
			found = append(found, Var{name, value, "it describes a Kubernetes Service called master and is not a port"})
		}
		if reason := foreignReason(name); reason != "" {
			found = append(found, Var{name, value, reason})
		}
	}
	return found
}

// foreignReason returns what the first launcher that reacts to a foreign variable would do, "" if no launcher reacts.
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

// table collects variables and leaves out those with an empty value.
type table []Var

// set is not inlined, because inlining makes the program 16 kB bigger.
//
//go:noinline
func (t *table) set(name, value, reason string) {
	if value != "" {
		*t = append(*t, Var{name, value, reason})
	}
}
