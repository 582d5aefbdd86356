package launch

import (
	"cmp"
	"strings"
)

// IsLauncher reports whether a command is an MPI launcher, by its name. It does not look into scripts.
func IsLauncher(name string) bool { return programStarts(name, mpiRanks) }

// Daemon is a program that a launcher starts on another host.
type Daemon struct {
	Program  string // its name, such as orted or hydra_pmi_proxy
	Detached bool   // it leaves the session that started it, so that the session ends at once
	Hosts    int    // on which the launcher has daemons, with its own host; 0 if unknown
}

// daemonNamed returns the launcher that starts a daemon, nil if no launcher does.
func daemonNamed(program string) (l *Launcher, d daemon) {
	for _, l := range launchers {
		for _, d := range l.Daemons {
			if d.program == program {
				return l, d
			}
		}
	}
	return nil, daemon{}
}

// tree reports whether the daemon starts daemons on further hosts without telling how many.
func (d Daemon) tree() bool {
	_, known := daemonNamed(d.Program)
	return known.starts
}

// launcher returns the launcher that started the daemon; an empty one if d is no daemon.
func (d Daemon) launcher() *Launcher {
	l, _ := daemonNamed(d.Program)
	return cmp.Or(l, new(Launcher))
}

const space = " \t\n\f\r"

// DaemonOf returns the launcher's daemon that the command of a remote shell starts, if it starts one.
func DaemonOf(command string) (d Daemon, ok bool) {
	for more := command; more != ""; {
		// Only the last word of a path counts, with or without quotation marks: earlier words are directories.
		word, next := more, ""
		if end := strings.IndexAny(more, space+`"'/;`); end >= 0 {
			word, next = more[:end], more[end:]
		}
		if l, known := daemonNamed(word); l != nil && (next == "" || next[0] != '/' && next[0] != ';') {
			d := Daemon{Program: word}
			d.Detached = known.detached != "" && strings.Contains(command, known.detached)
			if known.hosts != nil {
				d.Hosts = known.hosts(command)
			}
			return d, true
		}
		more = next[min(1, len(next)):]
	}
	return Daemon{}, false
}
