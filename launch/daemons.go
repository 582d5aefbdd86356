package launch

import (
	"regexp"
	"strconv"
	"strings"
)

// IsLauncher reports whether a command is an MPI launcher, by its name. It does not look into scripts.
func IsLauncher(name string) bool { return programStarts(name, mpiRanks) }

// Daemon is a program that a launcher starts on another host.
type Daemon struct {
	// Program is its name, such as orted or hydra_pmi_proxy.
	Program string
	// Detached says that it leaves the session that started it, so that the session ends at once.
	Detached bool
	// Hosts is the number of hosts on which the launcher has daemons, with its own host, if the command tells; 0 if
	// unknown. A daemon may start others.
	Hosts int
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
	if l, _ := daemonNamed(d.Program); l != nil {
		return l
	}
	return new(Launcher)
}

const space = " \t\n\f\r"

// DaemonOf reports whether the command that a remote shell was asked to run starts a launcher's daemon, and returns the
// daemon.
func DaemonOf(command string) (d Daemon, ok bool) {
	for more := command; more != ""; {
		// Only the last word of a path counts, with or without quotation marks: earlier words are directories.
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

// announcedStatus returns the status of the rank that a launcher blamed for the end of the job in its last lines on
// stderr. It is used if the launcher hung afterwards and had to be killed.
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
