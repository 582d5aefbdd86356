package launch

import (
	"bytes"
	"cmp"
	"strconv"
	"strings"
	"syscall"
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
	Blames: horovodBlames,
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

// readHorovodrun reads the arguments of horovodrun. After an unknown option it cannot tell where COMMAND begins, so an
// option for hosts counts anywhere on the line: horovodrun refuses two of them.
func readHorovodrun(args []string) HostLine {
	found, rest := horovodOptions.read(args)
	h := HostLine{Options: len(args) - len(rest), Launches: len(rest) > 0, readable: true}
	for _, o := range found {
		switch o.name {
		case "h", "help", "v", "version", "cb", "check-build":
			h.Launches = false
		case "np", "num-proc":
			n, err := strconv.Atoi(o.value)
			h.Ranks, h.readable = n, h.readable && err == nil && n > 0
		case "network-interface", "network-interfaces":
			h.Network = o.word
		case "H", "host", "hosts":
			hosts, ok := hostWords(o.value)
			h.Hosts, h.Given, h.readable = hosts, o.word, h.readable && ok
		case "hostfile":
			h.Hostfile, h.Given = o.value, o.word
		case "config-file":
			h.Given = o.word
		case "host-discovery-script", "min-np", "min-num-proc", "max-np", "max-num-proc", "slots-per-host",
			"elastic-timeout", "reset-limit", "blacklist-cooldown-range": // a script of the user lists the hosts
			h.Given, h.readable = o.word, false
		case "jsrun":
			h.readable = false
		}
		if !o.known {
			h.Unread, h.readable = cmp.Or(h.Unread, o.word), false
		}
	}
	if h.Unread == "" {
		return h
	}
	for _, word := range rest {
		switch name, _, _ := strings.Cut(word, "="); name {
		case "-H", "--host", "--hosts", "-hostfile", "--hostfile", "--host-discovery-script", "--config-file":
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

// lacksHorovodInterface reports whether a horovodrun does not understand --network-interface, as in Horovod 0.19.1:
// its script imports horovod.run.run, later ones horovod.run.runner or horovod.runner.
func lacksHorovodInterface(script []byte) bool {
	return bytes.Contains(script, []byte("horovod.run ")) || bytes.Contains(script, []byte("horovod.run.run "))
}

// horovodBlames reads the error with which horovodrun --gloo ends (horovod/runner/gloo_run.py, launch_gloo), with
// Horovod's traceback, and what it prints when a process ends. With Open MPI, mpirun reports the failure, and
// horovodrun only mpirun's status. Elastic jobs name "host[slot]" instead of the rank.
func horovodBlames(p *printed, b *Blame) {
	const horovodFailed = `^RuntimeError: Horovod detected that one or more processes exited with non-zero status`
	for i := range p.find("Horovod detected that", horovodFailed) {
		begin, end := i, i+1
		for begin > 0 && !strings.HasPrefix(p.lines[begin], "Traceback (most recent call last):") {
			begin--
		}
		var name, code string
		for ; end < len(p.lines); end++ {
			key, value, _ := strings.Cut(p.lines[end], ": ")
			if key == "Process name" {
				name = value
			} else if key == "Exit code" {
				code = value
			} else if strings.TrimSpace(p.lines[end]) != "" {
				break
			}
		}
		p.claim(begin, end)
		blame := negated("Horovod rank "+name, name, "", number(code))
		if host, slot, elastic := strings.Cut(strings.TrimSuffix(name, "]"), "["); elastic {
			blame.Process, blame.Rank, blame.Host = "Horovod slot "+slot, "", host
		}
		if blame.Status > 128 && blame.Status <= 128+64 {
			blame.Signal, blame.Status = syscall.Signal(blame.Status-128), 0
		}
		b.set(blame)
	}
	p.claimAll(" exit with status code ", `^Process \S+ exit with status code -?\d+\.$`)
	for i := range p.find(" exited with code ", `^RuntimeError: (?:mpirun|mpiexec) exited with code -?\d+`) {
		begin := i
		for begin > 0 && !strings.HasPrefix(p.lines[begin], "Traceback (most recent call last):") {
			begin--
		}
		p.claim(begin, i+1)
	}
}
