package launch

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// IsLauncher says whether a command is an MPI launcher itself, by its name. What a script does cannot be seen.
func IsLauncher(name string) bool { return programStarts(name, mpiRanks) }

// Daemon is what a launcher starts on another host.
type Daemon struct {
	// Program is orted (Open MPI 4), prted (Open MPI 5), hydra_pmi_proxy or hydra_bstrap_proxy (MPICH, Intel MPI), or
	// pmi_proxy (Intel MPI before 2019).
	Program string
	// Detached says that it leaves the session that started it, which then ends at once.
	Detached bool
	// Hosts is on how many hosts the launcher has daemons, its own host among them, if the command tells; 0 = unknown. A
	// daemon may start others (Open MPI: ess_base_num_procs, in orte/mca/plm/base/plm_base_launch_support.c and PRRTE's).
	Hosts int
}

// Tree says that it starts daemons on further hosts and does not tell how many.
func (d Daemon) Tree() bool { return d.Program == "hydra_bstrap_proxy" || d.Program == "pmi_proxy" }

// Hydra says that it belongs to MPICH or Intel MPI, whose launcher does not always notice when a daemon fails.
func (d Daemon) Hydra() bool {
	return strings.HasPrefix(d.Program, "hydra_") || d.Program == "pmi_proxy"
}

// daemons are the programs that a Daemon can be.
var daemons = []string{"orted", "prted", "hydra_pmi_proxy", "hydra_bstrap_proxy", "pmi_proxy"}

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
		if slices.Contains(daemons, word) && (end < 0 || more[end] != '/' && more[end] != ';') {
			return Daemon{Program: word, Detached: strings.Contains(command, "--daemonize"), Hosts: daemonHosts(command)}, true
		}
		if end < 0 {
			break
		}
		more = more[end+1:]
	}
	return Daemon{}, false
}

// daemonHosts reads the number in `-mca ess_base_num_procs "4"`.
func daemonHosts(command string) int {
	_, after, ok := strings.Cut(command, " ess_base_num_procs ")
	if !ok {
		return 0
	}
	word := strings.TrimLeft(after, space+`"`)
	digits := len(word) - len(strings.TrimLeft(word, "0123456789"))
	n, err := strconv.ParseUint(word[:digits], 10, 31)
	if err != nil {
		return 0
	}
	return int(n)
}

// announcements are what Open MPI 5 and MPICH print about the rank that ended a job: a status, or a signal. They are regular expressions.
var announcements = []struct {
	text   string
	signal bool
}{
	{`^\s*Exit code:\s+(\d+)$`, false},
	{`^\s*signal (\d+) \(.*\)\.$`, true},
	{`exited on\s+signal (\d+)`, true},
}

// Announced is the status of the rank that a launcher has named as the reason to end, in its last lines on stderr: for one
// that then did not end. Open MPI 5.0 comes to a stop in PMIx_server_finalize after a rank on another host has
// failed (openpmix/prrte#1607), when all that is left to do is to exit.
func Announced(tail []string) (status int, ok bool) {
	texts := make([]*regexp.Regexp, len(announcements))
	for i, a := range announcements {
		texts[i] = regexp.MustCompile(a.text)
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
