// Package launch runs the command of a job and hides how launchers differ from each other.
//
// A launcher is one file with one [Launcher] value; no other code names a launcher. The variables of all launchers are
// set at once ([Environment]), because the command may be a script, and nothing tells which launcher it calls. The
// command line stays as the user wrote it.
//
// [Run] runs one command. A [Supervisor] watches a command that is or starts a launcher: [Sessions] holds its sessions
// to other hosts, and [Asks] what its command line asked for. A [Stopper] stops the ranks before their launcher. A
// [Conductor] ends a job in which every rank runs the command, and its [Verdict] judges the job.
//
// The package does not read the environment of its own process, writes no files, and sends nothing over the network.
package launch

import (
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
)

// Setup holds the values of the launchers' variables. Without a value, the variables that need it are left out.
type Setup struct {
	Hostfile        string // the path of the host list in the form "name slots=n" (Open MPI), on this host only
	CountedHostfile string // the path of the host list in the form "name:n" (MPICH, Intel MPI)
	// Agent holds the words of the remote-shell agent for Open MPI. The first is an absolute path, the same on all
	// hosts: Open MPI calls the agent on every host of its spawn tree.
	Agent     []string
	AgentPath string // the remote-shell agent for launchers that take a path without arguments (MPICH, Intel MPI)
	Interface string // over which the hosts reach each other; it has the same name on every host
	Several   bool   // this host has more interfaces, so that a launcher might choose the wrong one
	Network   string // has the addresses of all hosts, as "10.0.0.0/24"; only hosts with several interfaces need it
	TempDir   string // for the session directories of Open MPI's daemons on every host; "" means TMPDIR or /tmp
	Root      bool   // the launcher will run as uid 0
}

// Var is an environment variable that is set or removed, and the reason.
type Var struct {
	Name, Value string
	Reason      string // one line: what the variable makes the launcher do
}

// Environment returns the variables of all launchers. [Setup.Check] tells whether they can hold the values.
func Environment(s Setup) []Var {
	return ofAll(func(l *Launcher) func(Setup) []Var { return l.Variables }, s)
}

// ofAll concatenates the variables that a function of each launcher returns. A launcher may lack the function.
func ofAll[T any](function func(*Launcher) func(T) []Var, from T) (vars []Var) {
	for _, l := range launchers {
		if f := function(l); f != nil {
			vars = append(vars, f(from)...)
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
	for _, p := range []struct{ what, path string }{
		{"agent", l.AgentPath}, {"hostfile", l.Hostfile}, {"hostfile", l.CountedHostfile}, {"directory", l.TempDir},
	} {
		if p.path != "" && (!path.IsAbs(p.path) || !plain(p.path)) {
			const want = "want an absolute path of letters, digits and any of"
			return fmt.Errorf("%s %q: %s %q", p.what, p.path, want, plainExtra)
		}
	}
	if l.Interface != "" && (!plain(l.Interface) || strings.ContainsAny(l.Interface, "/,")) {
		return fmt.Errorf("interface %q: not the name of a network interface", l.Interface)
	}
	if l.Network != "" && (!plain(l.Network) || !strings.Contains(l.Network, "/") || strings.Contains(l.Network, ",")) {
		return fmt.Errorf("network %q: want the form 10.0.0.0/24", l.Network)
	}
	return nil
}

// plainExtra holds the characters, beside letters and digits, that have no meaning for any launcher or shell.
const plainExtra = "_./+,=@%-"

func plain(s string) bool {
	special := func(r rune) bool { return !isWord(r) && !strings.ContainsRune(plainExtra, r) }
	return s != "" && !strings.ContainsFunc(s, special)
}

// isWord reports whether a character belongs to a name.
func isWord(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_'
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
// allocation and ignore our host list. The other variables of a scheduler stay, because programs read them.
func Leftovers(environ []string) (found []Var) {
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
		if i := slices.IndexFunc(l.Foreign, func(f Var) bool { return f.Name == variable }); i >= 0 {
			return l.Foreign[i].Reason
		}
	}
	return ""
}

// Without returns environ without the variables named in vars. environ is not modified.
func Without(environ []string, vars []Var) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.ContainsFunc(vars, func(v Var) bool { return v.Name == name })
	})
}

// WriteVars writes variables with their reasons below a title, or nothing if there are none.
func WriteVars(out io.Writer, title string, vars []Var) error {
	if len(vars) == 0 {
		return nil
	}
	_, err := fmt.Fprintf(out, "\n%s\n", title)
	for _, v := range vars {
		if err == nil {
			_, err = fmt.Fprintf(out, "    %s=%s\n        %s\n", v.Name, v.Value, v.Reason)
		}
	}
	return err
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

// Values returns the values of vars that a command sees. The user's own values take precedence.
func Values(environ []string, vars []Var) map[string]string {
	merged, _ := Merge(environ, vars)
	values := make(map[string]string, len(vars))
	for _, v := range vars {
		values[v.Name] = Value(merged, v.Name)
	}
	return values
}
