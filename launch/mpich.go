package launch

import (
	"strings"
	"syscall"
	"time"
)

// mpich is MPICH's hydra (mpiexec, mpiexec.hydra, and mpirun if it is a link to them).
var mpich = Launcher{
	Name:     "MPICH",
	Programs: []string{"mpirun", "mpiexec", "mpiexec.hydra", "mpirun.mpich", "mpiexec.mpich"},
	Starts:   mpiRanks,
	Variables: func(s Setup) []Var {
		return hydraVariables(s, "MPICH", "HYDRA_LAUNCHER", "HYDRA_HOST_FILE", "HYDRA_IFACE")
	},

	RankVariables: []string{"PMI_RANK"},
	// hydra prefers HYDRA_HOST_FILE to these variables, but a script or a wrapper of mpiexec may not.
	Foreign: []Var{
		{Name: "PBS_NODEFILE", Reason: "mpiexec would take its hosts from PBS"},
		{Name: "LSB_HOSTS", Reason: "mpiexec would take its hosts from LSF"},
		{Name: "LSB_MCPU_HOSTS", Reason: "mpiexec would take its hosts from LSF"},
	},
	Choices: []choice{{"HYDRA_IFACE", "HYDRA_IFACE -iface"}},
	Files: choiceFiles{
		home: ".mpiexec.hydra.conf", conf: "mpiexec.hydra.conf", variables: "HYDRA_CONFIG_FILE",
	},
	// In 4.0.2 the environment of mpiexec overrides that of its proxies, which comes from their own host's session.
	Overrides: []string{"mpiexec", "mpiexec.hydra", "mpiexec.mpich", "mpirun.mpich"},
	Compared:  []string{"mpirun", "mpiexec", "mpiexec.hydra"},
	Versions:  []versionText{{`(?s)HYDRA build details:.*?Version:\s+(\S+)`, "MPICH"}},
	Options:   hydraOptions,
	Daemons:   []daemon{{program: "hydra_pmi_proxy"}},
	// After a failure hydra ends at once or never.
	FailureTimeout: 5 * time.Second,
	MissesFailures: true,
	Blames:         hydraBlames,
}

// hydraOptions are the options of hydra's mpiexec (its --help), for MPICH and Intel MPI.
var hydraOptions = mpiOptions{
	ranks:    "n np",
	hosts:    "hosts host",
	hostfile: "f hostfile machinefile",
	one: "wdir map-by bind-to iface launcher bootstrap launcher-exec bootstrap-exec rmk demux envlist genvlist " +
		"ckpoint-interval usize outfile-pattern errfile-pattern topolib gpus-per-proc",
	two:    "env genv",
	unread: "ppn perhost configfile",
}

// hydraVariables returns the variables of a product with hydra's mpiexec, given their names.
func hydraVariables(s Setup, product, launcher, hostfile, iface string) []Var {
	var t table
	if s.AgentPath != "" {
		t.set(launcher, "ssh",
			product+" starts its proxies by a remote shell, even inside an allocation of another scheduler")
	}
	t.set(launcher+"_EXEC", s.AgentPath, product+" starts its proxies on the other hosts through paiinit")
	t.set(hostfile, s.CountedHostfile, product+" starts on the hosts of this job")
	t.set(iface, s.Interface, product+"'s proxies call back over the network that the hosts share")
	return t
}

// hydraBlames reads the reports of MPICH and Intel MPI: the banner of their mpiexec on stdout
// (src/pm/hydra/mpiexec/mpiexec.c and pmiserv_cb.c), and what a rank prints when MPI ends it (src/mpi/init/initutil.c).
// Intel MPI's banner also has the rank: "RANK 1 PID 4242 RUNNING AT host" and "KILLED BY SIGNAL: 9 (Killed)" (from
// Intel's documentation; not run).
func hydraBlames(p *printed, b *Blame) {
	// "on node" is the rank in MPI_COMM_WORLD.
	const aborted = `(?:^|\] )Abort\((-?\d+)\)(?: on node (\d+))?(?: \(rank \d+ in comm \S+\))?: (.*)`
	for i, m := range p.find("Abort(", aborted) {
		blame := Blame{Process: "an MPI rank", Status: number(m[1]), Abort: "MPI_Abort"}
		if m[2] != "" {
			blame.Process, blame.Rank = "MPI rank "+m[2], m[2]
		}
		if strings.HasPrefix(m[3], "application called MPI_Abort(") {
			p.claim(i, i+1)
		} else { // the library failed, and its own number says nothing
			blame.Status, blame.Abort = 0, ""
			blame.Cause = strings.TrimSuffix(m[3], ", error stack:")
		}
		b.set(blame)
		break
	}
	hydraBanner(p, b)
	const notExecuted = `\[proxy:\S+@([^]]+)\] HYDU_create_process .*execvp error on file (\S+) \((.*)\)`
	for i, m := range p.find("HYDU_create_process", notExecuted) {
		b.set(Blame{Cause: m[2] + " cannot be executed on " + m[1] + ": " + m[3]})
		p.claim(i, i+1)
	}
	const ended = `(?:terminated badly|returned error|error waiting for completion)`
	p.claimAll("@", `^\[(?:mpiexec|proxy:\S+)@[^]]+\] .*`+ended)
}

// hydraBanner reads the banner, which names one of the processes that a signal ended.
func hydraBanner(p *printed, b *Blame) {
	for i := range p.find("BAD TERMINATION", `^=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES`) {
		begin, end := i, i+1
		if begin > 0 && isRule(p.lines[begin-1]) {
			begin--
		}
		for end < len(p.lines) && strings.HasPrefix(p.lines[end], "=") {
			end++
		}
		for end < len(p.lines) && isEpilogue(p.lines[end]) {
			end++
		}
		p.claim(begin, end)
		text := newPrinted([]string{oneLine(p.lines[begin:end])})
		const process = `= (?:RANK (\d+) )?PID (\d+) RUNNING AT (\S+)`
		blame := Blame{}
		for _, m := range text.find(" RUNNING AT ", process) {
			blame.Process, blame.Rank, blame.Host = "process "+m[2], m[1], m[3]
			if m[1] != "" {
				blame.Process = "MPI rank " + m[1]
			}
		}
		for _, m := range text.find("= EXIT ", `= EXIT (?:CODE|STATUS): (\d+)`) {
			blame.Status = number(m[1])
		}
		for _, m := range text.find("", `(?:KILLED BY SIGNAL: |EXIT STRING: [^(]*\(signal )(\d+)`) {
			blame.Status, blame.Signal = 0, syscall.Signal(number(m[1]))
		}
		if blame.Signal == syscall.SIGKILL || blame.Signal == syscall.SIGTERM {
			blame.Unsure = wasKilled
		}
		if blame.Process != "" {
			b.set(blame)
		}
	}
}

func isRule(line string) bool { return len(line) >= 40 && strings.Trim(line, "=") == "" }

// isEpilogue reports whether a line belongs to the text below the banner.
func isEpilogue(line string) bool {
	for _, begin := range []string{
		"YOUR APPLICATION TERMINATED WITH THE EXIT STRING: ",
		"This typically refers to a problem with your application.",
		"Please see the FAQ page for debugging suggestions", "   Intel(R) MPI Library troubleshooting guide:",
	} {
		if strings.HasPrefix(line, begin) {
			return true
		}
	}
	return false
}
