package launch

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
)

// horovod is horovodrun. It takes its hosts only from -H or --hostfile, its remote shell by the name ssh, and its
// network from the answers of every host; if it runs mpirun, mpirun's variables count. On hosts with several networks a
// variable names Gloo's interface, because the answers name interfaces (horovod/runner/driver/driver_service.py).
var horovod = Launcher{
	Name:     "horovodrun",
	Programs: []string{"horovodrun"},
	Modules: []string{
		"horovod.runner", "horovod.runner.launch", "horovod.run", "horovod.run.run", "horovod.run.runner",
	},
	Starts:    ranks,
	Variables: horovodVariables,

	RankVariables: []string{"HOROVOD_RANK"},
	Choices: []choice{
		{"HOROVOD_GLOO_IFACE", "HOROVOD_GLOO_IFACE --network-interface --network-interfaces"},
		// horovodrun passes the interface to mpirun as btl_tcp_if_include.
		{horovodInterface, "btl_tcp_if_include btl_tcp_if_exclude"},
	},
	Asked: horovodAsked,
	Fill: &Fill{
		Read:             readHorovodrun,
		Dialect:          "horovod",
		NetworkOption:    horovodInterface,
		NetworkVariables: []string{"NCCL_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE"},
		LacksNetwork:     lacksHorovodInterface,
		Words:            horovodWords,
	},
	// horovod/runner/launch.py and driver_service.py
	Probes: []string{"horovod.runner.task_fn", "horovod.run.task_fn"},
}

func horovodVariables(l Setup) []Var {
	var t table
	if l.Several {
		t.set("HOROVOD_GLOO_IFACE", l.Interface, "Horovod's Gloo talks over the network that the hosts share")
	}
	return t
}

// horovodInterface is the option that chooses its network. Horovod 0.25 has --network-interfaces as well; every version
// since 0.19.2 understands this spelling.
const horovodInterface = "--network-interface"

// horovodOptions are the options of horovodrun 0.16 to 0.28 (horovod/runner/launch.py).
var horovodOptions = options{
	none: "h help v version cb check-build disable-cache verbose tcp hierarchical-allreduce " +
		"no-hierarchical-allreduce hierarchical-allgather no-hierarchical-allgather torus-allreduce " +
		"no-torus-allreduce autotune no-autotune timeline-mark-cycles no-timeline-mark-cycles no-stall-check " +
		"stall-check mpi-threads-disable no-mpi-threads-disable log-with-timestamp log-without-timestamp " +
		"prefix-timestamp prefix-output-with-timestamp log-hide-timestamp no-log-hide-timestamp gloo mpi " +
		"jsrun",
	one: "np num-proc H host hosts hostfile host-discovery-script config-file network-interface " +
		"network-interfaces p ssh-port i ssh-identity-file start-timeout output-filename min-np min-num-proc " +
		"max-np max-num-proc slots-per-host elastic-timeout reset-limit fusion-threshold-mb cycle-time-ms " +
		"cache-capacity autotune-log-file autotune-warmup-samples autotune-steps-per-sample " +
		"autotune-bayes-opt-max-samples autotune-gaussian-process-noise timeline-filename " +
		"stall-check-warning-time-seconds stall-check-shutdown-time-seconds mpi-args binding-args " +
		"num-nccl-streams thread-affinity ccl-bgt-affinity gloo-timeout-seconds log-level",
	two: "blacklist-cooldown-range",
}

// elastic are the options of elastic jobs, in which a script of the user lists the hosts.
var elastic = []string{
	"host-discovery-script", "min-np", "min-num-proc", "max-np", "max-num-proc", "slots-per-host", "elastic-timeout",
	"reset-limit", "blacklist-cooldown-range",
}

// readHorovodrun reads the arguments of horovodrun. After an unknown option it cannot tell where COMMAND begins, so an
// option for hosts counts anywhere on the line: horovodrun refuses two of them.
func readHorovodrun(args []string) HostLine {
	h := HostLine{readable: true}
	rest, query := args, false
	for {
		name, values, after, known, ok := horovodOptions.next(rest)
		if !ok {
			break
		}
		word, value := rest[0], strings.Join(values, " ")
		rest = after
		switch {
		case !known:
			if h.Unread == "" {
				h.Unread = word
			}
		case slices.Contains([]string{"h", "help", "v", "version", "cb", "check-build"}, name):
			query = true
		case name == "np" || name == "num-proc":
			n, err := strconv.Atoi(value)
			h.readable = h.readable && err == nil && n > 0
			h.Ranks = n
		case name == "network-interface" || name == "network-interfaces":
			h.Network = word
		case name == "H" || name == "host" || name == "hosts":
			hosts, ok := hostWords(value)
			h.readable = h.readable && ok
			h.Hosts, h.Given = hosts, word
		case name == "hostfile":
			h.Hostfile, h.Given = value, word
		case name == "config-file":
			h.Given = word
		case slices.Contains(elastic, name):
			h.Given, h.readable = word, false
		case name == "jsrun":
			h.readable = false
		}
	}
	h.Options, h.Launches = len(args)-len(rest), len(rest) > 0 && !query
	if h.Unread == "" {
		return h
	}
	h.readable = false
	for _, word := range rest {
		name, _, _ := strings.Cut(word, "=")
		if slices.Contains([]string{
			"-H", "--host", "--hosts", "-hostfile", "--hostfile", "--host-discovery-script", "--config-file",
		}, name) {
			h.Given = name
		}
	}
	return h
}

func horovodAsked(args []string) (Request, bool) {
	h := readHorovodrun(args)
	return h.Request, h.Launches && h.readable
}

func horovodWords(hosts []string, ranks int) []string {
	words := []string{"-H", strings.Join(hosts, ",")}
	if ranks > 0 {
		words = append([]string{"-np", strconv.Itoa(ranks)}, words...)
	}
	return words
}

// lacksHorovodInterface reports whether a horovodrun belongs to Horovod 0.19.1 or older, which does not understand
// --network-interface. Its script tells: older ones import horovod.run.run, later ones horovod.run.runner or
// horovod.runner.
func lacksHorovodInterface(script []byte) bool {
	return bytes.Contains(script, []byte("horovod.run ")) || bytes.Contains(script, []byte("horovod.run.run "))
}
