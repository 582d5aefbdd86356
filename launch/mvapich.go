package launch

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// mvapich is mpirun_rsh of MVAPICH2 and MVAPICH 3, from the sources of 3.0 (src/pm/mpirun); it was never run. It takes
// its hosts from -hostfile or the words before the program, else from Slurm, PBS or ~/.mpirun_hosts. No variable
// changes these, nor the ssh that it executes, which was found at build time and is mostly /usr/bin/ssh. MVAPICH's
// mpiexec is hydra's.
var mvapich = Launcher{
	Name:     "MVAPICH",
	Programs: []string{"mpirun_rsh"},
	Starts:   mpiRanks,

	RankVariables: []string{"MVP_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK"},
	Manual: "mpirun_rsh reads no variable: it needs `-hostfile $PAIINIT_HOSTFILE.hydra`, and paiinit in place of the " +
		"`ssh` that it was built with, mostly /usr/bin/ssh (from its sources; not run)",
	Foreign: []Var{
		{Name: "SLURM_JOBID", Reason: "mpirun_rsh would take its hosts from Slurm"},
		{Name: "SLURM_JOB_ID", Reason: "mpirun_rsh would take its hosts from Slurm"},
		{Name: "PBS_NODEFILE", Reason: "mpirun_rsh would take its hosts from PBS"},
	},
	Compared:      []string{"mpirun_rsh"},
	VersionOption: "-v",
	Versions:      []versionText{{`(?m)^Version: mvapich2?-(\S+)`, "MVAPICH"}},
	Asked:         mvapichAsked,
	// Each host's mpispawn ends with its ranks; if one of them or its ssh fails, mpirun_rsh ends the others.
	Daemons:        []daemon{{program: "mpispawn"}},
	FailureTimeout: 10 * time.Second,
}

// mvapichOptions are the options in commandLine of mpirun_params.c; getopt_long_only accepts them with one dash, and
// shortened. The options for rsh and ssh, -paramfile and -sparehosts are from MVAPICH2.
var mvapichOptions = options{
	none: "debug xterm show help v tv legacy startedByTv dpm fastssh export export-all rsh ssh",
	one:  "np n ppn hostfile launcher spawnfile config dpmspawn sg paramfile sparehosts",
}

// mvapichAsked reads `mpirun_rsh -np N [-hostfile FILE | HOST...] [NAME=VALUE...] PROGRAM`. Without a host list the
// first N words are hosts, if enough words follow.
func mvapichAsked(args []string) (r Request, ok bool) {
	found, args := mvapichOptions.read(args)
	for _, o := range found {
		switch o.name {
		case "help", "v", "show", "ppn", "config", "dpm", "dpmspawn", "spawnfile":
			return Request{}, false // nothing runs, or the number of ranks or hosts is unknown
		case "launcher":
			if o.value != "ssh" && o.value != "rsh" {
				return Request{}, false
			}
		case "np", "n":
			r.Ranks, _ = strconv.Atoi(o.value)
			if r.Ranks < 1 || r.Ranks > 1<<16 {
				return Request{}, false
			}
		case "hostfile":
			r.Hostfile = o.value
		}
		if !o.known {
			return Request{}, false
		}
	}
	if r.Ranks == 0 || len(args) == 0 {
		return Request{}, false
	}
	if r.Hostfile == "" && !strings.Contains(args[0], "=") && len(args) > r.Ranks {
		r.Hosts, args = args[:r.Ranks], args[r.Ranks:]
	}
	return r, slices.ContainsFunc(args, func(word string) bool { return !strings.Contains(word, "=") })
}
