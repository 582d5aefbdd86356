package launch

import (
	"strconv"
	"strings"
	"syscall"
	"time"
)

// openMPI4 is Open MPI 4.0 and 4.1 (ORTE). Open MPI 5 reads the same variables of the MPI library (btl, pml) and the
// same two variables for root.
var openMPI4 = Launcher{
	Name:      "Open MPI 4",
	Programs:  []string{"mpirun", "mpiexec", "orterun", "mpirun.openmpi", "mpiexec.openmpi"},
	Starts:    mpiRanks,
	Variables: openMPI4Variables,

	RankVariables: []string{"OMPI_COMM_WORLD_RANK", "PMIX_RANK"},
	Foreign: []Var{
		// With SLURM_JOBID alone 4.1.4 fails or starts by srun, and inside Grid Engine it takes its hosts from
		// PE_HOSTFILE. Builds with PBS and LSF support react to the other two (orte/mca/ras/{tm,lsf}, src/mca/ras of
		// PRRTE).
		{Name: "SLURM_JOBID", Reason: "Open MPI would take its hosts from Slurm and start them by srun"},
		{Name: "PBS_JOBID", Reason: "Open MPI would take its hosts from PBS"},
		{Name: "LSB_JOBID", Reason: "Open MPI would take its hosts from LSF"},
		{Name: "PE_HOSTFILE", Reason: "Open MPI would take its hosts from Grid Engine"},
	},
	Choices: []choice{
		{"OMPI_MCA_btl_tcp_if_include", "btl_tcp_if_include btl_tcp_if_exclude"},
		{"OMPI_MCA_oob_tcp_if_include", "oob_tcp_if_include oob_tcp_if_exclude"},
	},
	Files: choiceFiles{
		home:           ".openmpi/mca-params.conf",
		conf:           "openmpi-mca-params.conf openmpi-mca-params-override.conf",
		variables:      "OMPI_MCA_mca_base_param_files OMPI_MCA_mca_param_files OMPI_MCA_mca_base_envar_file_prefix",
		prefixOf:       "mpirun",
		prefixVariable: "OPAL_PREFIX",
		// Debian and Fedora keep the configuration outside the prefix.
		system: "/etc/openmpi /etc/openmpi-x86_64 /etc/openmpi-aarch64",
	},
	FabricVariables: openMPI4Fabric,
	Compared:        []string{"mpirun", "mpiexec"},
	Versions: []versionText{
		{`\(IBM Spectrum MPI\) (\S+)`, "Spectrum MPI"},
		{`\((?:Open MPI|OpenRTE)\) (\S+)`, "Open MPI"},
	},
	Options: mpiOptions{ // orterun(1)
		ranks:    "n np c",
		hosts:    "H host",
		hostfile: "hostfile machinefile default-hostfile",
		one: "x wdir wd map-by rank-by bind-to path prefix output-filename stdin timeout report-state-on-timeout am " +
			"tune max-restarts report-uri report-pid server ompi-server personality rf rankfile cpu-set cpu-list",
		two:    "mca gmca omca",
		unread: "N npernode pernode npersocket app hnp loadbalance",
	},
	SessionDir: "ompi.", // ompi.HOST.UID
	Daemons:    []daemon{{program: "orted", detached: "--daemonize", hosts: openMPIHosts}},
	// After the loss of a daemon it ends within 4 s and its own time between SIGTERM and SIGKILL.
	FailureTimeout: 10 * time.Second,
	DaemonsStay:    true,
	Blames:         openMPIBlames,
}

func openMPI4Variables(s Setup) []Var {
	t := openMPIVariables(s, "Open MPI 4", "OMPI_MCA_plm_rsh_agent", "OMPI_MCA_orte")
	if s.Root {
		t.set("OMPI_ALLOW_RUN_AS_ROOT", "1", "Open MPI refuses to run as root without it")
		t.set("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", "Open MPI refuses to run as root without it")
	}
	t.set("OMPI_MCA_oob_tcp_if_include", s.Network, "Open MPI 4 daemons talk over the network that the hosts share")
	t.set("OMPI_MCA_btl_tcp_if_include", s.Network, "Open MPI ranks talk over the network that the hosts share")
	return t
}

// openMPIVariables returns the variables that versions 4 and 5 have under different names.
func openMPIVariables(s Setup, version, agent, prefix string) (t table) {
	t.set(agent, strings.Join(s.Agent, " "), version+" starts its daemons on the other hosts through paiinit")
	t.set(prefix+"_default_hostfile", s.Hostfile, version+" starts on the hosts of this job")
	t.set(prefix+"_tmpdir_base", s.TempDir, version+" keeps its session directory where this container can write")
	return t
}

func openMPI4Fabric(f Fabric) []Var {
	var t table
	switch f.Kind {
	case FabricVerbs:
		t.set("OMPI_MCA_btl", "^openib", "Open MPI 4 uses verbs devices through UCX; its openib only prints warnings")
		if f.Required {
			t.set("OMPI_MCA_pml", "ucx", "RDMA is required: Open MPI fails instead of falling back to TCP")
		}
	case FabricEFA:
		t.set("OMPI_MCA_btl", "^openib", "Open MPI 4 uses EFA through libfabric; its openib only prints warnings")
		if f.Required {
			const why = "RDMA is required: Open MPI uses libfabric, and fails instead of falling back to TCP"
			t.set("OMPI_MCA_pml", "cm", why)
			t.set("OMPI_MCA_mtl", "ofi", why)
		}
	case FabricTCP:
		// The lists exclude components: a list such as "tcp,self,vader" would also exclude CUDA's shared memory, and
		// the name of the shared memory component differs between 4 and 5.
		t.set("OMPI_MCA_pml", "ob1", f.Why+": MPI stays off UCX and libfabric")
		t.set("OMPI_MCA_btl", "^openib,uct,ofi,usnic", f.Why+": MPI stays on TCP and shared memory")
	}
	if f.NoPeerMemory {
		const why = "processes may not read each other's memory here: Open MPI 4 would print errors " +
			"(Read -1, expected ...)"
		t.set("OMPI_MCA_btl_vader_single_copy_mechanism", "none", why)
	}
	return t
}

// openMPIHosts reads the number in `-mca ess_base_num_procs "4"` (orte/mca/plm/base/plm_base_launch_support.c; PRRTE
// prints the same).
func openMPIHosts(command string) int {
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

// openMPIBlames reads the reports of Open MPI 4 (orte/tools/orterun/help-orterun.txt, ompi/mpi/help/help-mpi-api.txt)
// and Open MPI 5 (src/docs/show-help-files/help-prun.txt of PRRTE). Each stands between two lines of hyphens. Other
// texts between such lines, such as those about a network or a missing host, are the cause if no process is reported
// before them.
func openMPIBlames(p *printed, b *Blame) {
	blamed, announced := openMPIReports(p, b)
	openMPITexts(p, b, blamed)
	if b.Process == "" { // a report of which the beginning or the end has been lost
		openMPIReport(joined(p.lines[max(0, len(p.lines)-20):]), b)
	}
	p.claimAll(" total processes ", `^\d+ total processes (?:killed|failed to start)`)
	p.claimAll(" sent help message ", `^\[[^]]+\] \d+ more process(?:es)? ha(?:s|ve) sent help message `)
	p.claimAll("orte_base_help_aggregate", `^\[[^]]+\] Set MCA parameter "orte_base_help_aggregate" to 0 `)
	p.claimAll("ORTE_ERROR_LOG: ", `ORTE_ERROR_LOG: .*/show_help\.c at line`)
	// 4.1 loses the text about MPI_Abort if it runs with --tag-output.
	const fatal = `\*\*\* (?:An error occurred in (\S+)|(MPI_ERR_\w+: .*))`
	var where []string
	for _, m := range p.find("*** ", fatal) {
		where = append(where, m[1]+m[2])
	}
	if len(where) > 0 && b.Cause == "" {
		b.Cause = oneLine([]string{strings.Join(where, ": ")})
		if b.Status == 0 { // the library has called MPI_Abort
			b.Abort = ""
		}
	}
	if announced && b.Process == "" && b.Cause == "" {
		b.Cause, b.Unnamed = unnamedRank, true
	}
}

// openMPIReports reads the reports that are understood, and claims them. It returns the line of the first one about a
// process, and whether there was one that the report about a process follows.
func openMPIReports(p *printed, b *Blame) (blamed int, announced bool) {
	blamed = len(p.lines)
	if b.Process != "" {
		blamed = 0
	}
	begin := -1
	for end, line := range p.lines {
		if begin >= 0 && isFrame(line) {
			if text := joined(p.lines[begin+1 : end]); openMPIReport(text, b) {
				if isFrame(p.lines[begin]) {
					p.claim(begin, begin+1)
				}
				p.claim(begin+1, end+1)
				if b.Process != "" {
					blamed = min(blamed, begin)
				}
				announced = announced || strings.HasPrefix(text, jobAborted)
			}
		}
		if endsInFrame(line) {
			begin = end
		}
	}
	return blamed, announced
}

// openMPITexts takes the other text between two of Open MPI's lines of hyphens as the cause, if it comes before a line,
// and claims such lines.
func openMPITexts(p *printed, b *Blame, before int) {
	for begin := 0; begin < len(p.lines); begin++ {
		if p.own[begin] || !p.isOpenMPIFrame(begin) {
			continue
		}
		end := p.frameAfter(begin)
		text := joined(p.lines[begin+1 : end])
		unknown := begin < before && (b.Cause == "" || b.Cause == noDaemons)
		switch {
		case text == "", end == len(p.lines), p.own[end],
			strings.TrimSpace(p.lines[end]) != strings.TrimSpace(p.lines[begin]):
			p.claim(begin, begin+1) // it ends a text whose beginning has been lost
			continue
		case unknown && len(text) < mostCause: // else the whole text stays in the last lines
			b.Cause = "Open MPI: " + strings.TrimSuffix(text, ".")
			p.claim(begin, end+1)
		default:
			p.claim(begin, begin+1)
			p.claim(end, end+1)
		}
		begin = end
	}
}

// noDaemons replaces 20 lines that Open MPI prints whenever it cannot start its daemons. They list possible reasons but
// not the host, so any other cause tells more.
const noDaemons = "Open MPI could not start its daemons on all hosts"

// jobAborted begins the report that comes before that about the process.
const jobAborted = "Primary job terminated normally, but "

// unnamedRank is the cause where the report about the process is missing. mpirun prints it in the state into which the
// failed rank has put the job, but then the news that all ranks have started makes the state "running" again
// (orte/mca/errmgr/default_hnp/errmgr_default_hnp.c, orte/mca/plm/base/plm_base_launch_support.c, dump_aborted_procs in
// orte/runtime/orte_quit.c). 4.1.4 did not name 10 of 100 ranks that failed as soon as they had started.
const unnamedRank = "an MPI rank failed, but Open MPI did not say which: it may not while others are starting"

// frameAfter returns the number of the next line of hyphens, or that of all lines.
func (p *printed) frameAfter(line int) int {
	for line++; line < len(p.lines) && !isFrame(p.lines[line]); {
		line++
	}
	return line
}

// isFrame reports whether a line consists of at least 40 hyphens.
func isFrame(line string) bool {
	line = strings.TrimSpace(line)
	return len(line) >= 40 && strings.Trim(line, "-") == ""
}

// isOpenMPIFrame reports whether a line is that of Open MPI, not of a table of the job: it has 74 hyphens
// (opal/util/show_help.c), or 60 above one text (orte/mca/oob/tcp/oob_tcp_connection.c).
func (p *printed) isOpenMPIFrame(line int) bool {
	return isFrame(p.lines[line]) && (len(strings.TrimSpace(p.lines[line])) == 74 ||
		line+1 < len(p.lines) && strings.HasPrefix(p.lines[line+1], "A process or daemon was unable to complete "))
}

// endsInFrame reports whether a report may begin after a line: a process may have written the beginning of the line of
// hyphens, such as the first half of an error of the TCP transport.
func endsInFrame(line string) bool {
	line = strings.TrimRight(line, space)
	return len(line)-len(strings.TrimRight(line, "-")) >= 40
}

// openMPIReport reads the text of one frame, and reports whether it was understood.
func openMPIReport(report string, b *Blame) bool {
	text := newPrinted([]string{report})
	match := func(part, expression string) (m []string) {
		for _, m = range text.find(part, expression) {
			return m
		}
		return nil
	}
	if strings.HasPrefix(report, jobAborted) {
		return true
	}
	// Follows the loss of a daemon, and may name another host than that of the lost one.
	if match("how to route", `^ORTE does not know how to route a message to the specified daemon `) != nil {
		return true
	}
	const killed = `noticed that process rank (\d+) with PID \d+ on node (\S+) exited on signal (\d+)`
	if m := match("exited on signal", killed); m != nil {
		b.set(Blame{Process: "MPI rank " + m[1], Rank: m[1], Host: m[2], Signal: syscall.Signal(number(m[3]))})
		return true
	}
	const exited = `The first process to do so was: Process name: \[(?:\[\d+,\d+\]|\S+@\d+),(\d+)\] Exit code: (\d+)`
	if m := match("Exit code:", exited); m != nil {
		b.set(Blame{Process: "MPI rank " + m[1], Rank: m[1], Status: number(m[2])})
		return true
	}
	if m := match("MPI_ABORT", `^MPI_ABORT was invoked on rank (\d+) in communicator (MPI_COMM_WORLD|.*?) ?`+
		`(?:with errorcode|Proc: \[\[\d+,\d+\],(\d+)\] Errorcode:) (-?\d+)`); m != nil {
		rank := m[1] // in the communicator
		if m[3] != "" {
			rank = m[3]
		} else if !strings.HasPrefix(m[2], "MPI_COMM_WORLD") && m[2] != "MPI COMMUNICATOR 0" {
			rank = ""
		}
		process := "MPI rank " + rank
		if rank == "" {
			process = "rank " + m[1] + " of " + m[2]
		}
		b.set(Blame{Process: process, Rank: rank, Status: number(m[4]), Abort: "MPI_Abort"})
		return true
	}
	const ended = `has exited due to process rank (\d+) with PID \d+ on node (\S+) `
	if m := match(`calling "abort"`, ended+`calling "abort"`); m != nil {
		b.set(Blame{Process: "MPI rank " + m[1], Rank: m[1], Host: m[2], Abort: "MPI_Abort"})
		return true
	}
	if m := match("exiting improperly", ended+`exiting improperly`); m != nil {
		b.set(Blame{
			Process: "MPI rank " + m[1], Rank: m[1], Host: m[2],
			Cause: "it ended without calling MPI_Finalize",
		})
		return true
	}
	if match(" was unable to reliably start ", `^\S+ was unable to reliably start one or more daemons\.`) != nil {
		if b.Cause == "" {
			b.Cause = noDaemons
		}
		return true
	}
	const missing = `was unable to (?:find the specified executable file|` +
		`launch the specified application as it could ` +
		`not access or execute an executable).* (?:Node: +(\S+) Executable: +(\S+)|Executable: +(\S+) Node: +(\S+))`
	if m := match("was unable to ", missing); m != nil {
		b.set(Blame{Cause: m[2] + m[3] + " was not found on " + m[1] + m[4] + ", or cannot be executed there"})
		return true
	}
	return false
}
