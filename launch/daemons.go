package launch

import (
	"regexp"
	"strconv"
	"strings"
)

// IsLauncher says whether a command is an MPI launcher itself, by its name. What a script does cannot be seen.
func IsLauncher(name string) bool { return programStarts(name, mpiRanks) }

// Daemon is what a launcher starts on another host.
type Daemon struct {
	// Program is its name, such as orted or hydra_pmi_proxy.
	Program string
	// Detached says that it leaves the session that started it, which then ends at once.
	Detached bool
	// Hosts is on how many hosts the launcher has daemons, its own host among them, if the command tells; 0 = unknown.
	// A daemon may start others.
	Hosts int
}

// daemonNamed finds the launcher that starts a daemon, nil if there is none.
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

// tree reports whether it starts daemons on further hosts and does not tell how many.
func (d Daemon) tree() bool {
	_, known := daemonNamed(d.Program)
	return known.starts
}

// launcher is the launcher that has started it; where d is no daemon, an empty one.
func (d Daemon) launcher() *Launcher {
	if l, _ := daemonNamed(d.Program); l != nil {
		return l
	}
	return new(Launcher)
}

const space = " \t\n\f\r"

// DaemonOf tells from the command that a remote shell was asked to run whether it starts a launcher's daemon.
func DaemonOf(command string) (d Daemon, ok bool) {
	for more := command; more != ""; {
		// The last word of a path, with or without quotation marks: it is a program and no part of one's name.
		end := strings.IndexAny(more, space+`"'/;`)
		word := more
		if end >= 0 {
			word = more[:end]
		}
		if l, known := daemonNamed(word); l != nil && (end < 0 || more[end] != '/' && more[end] != ';') {
			d := Daemon{Program: word}
			d.Detached = known.detached != "" && strings.Contains(command, known.detached)
			if known.hosts != nil {
				d.Hosts = known.hosts(command)
			}
			return d, true
		}
		if end < 0 {
			break
		}
		more = more[end+1:]
	}
	return Daemon{}, false
}

// announcedStatus is the status of the rank that a launcher has named as the reason to end, in its last lines on
// stderr: for a launcher that then did not end, although all that was left to do was to exit.
func announcedStatus(tail []string) (status int, ok bool) {
	var announcements []announcement
	var texts []*regexp.Regexp
	for _, l := range launchers {
		for _, a := range l.Announcements {
			announcements = append(announcements, a)
			texts = append(texts, regexp.MustCompile(a.text))
		}
	}
	for _, line := range tail {
		for i, a := range announcements {
			m := texts[i].FindStringSubmatch(line)
			if m == nil {
				continue
			}
			n, err := strconv.Atoi(m[1])
			switch {
			case err != nil || n == 0 || n > 255:
				continue
			case a.signal:
				return 128 + n, n < 65
			}
			return n, true
		}
	}
	return 0, false
}
