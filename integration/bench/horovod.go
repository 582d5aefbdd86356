package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/paiinit/paiinit/integration/sweep"
)

const (
	trainedHosts  = 4 // containers of each cluster that trains
	trainingLimit = 2 * time.Minute
)

// trainingStart is a way to start the training.
type trainingStart struct {
	title      string
	controller string // of horovodrun; "" = mpirun
	cold       bool   // without ~/.horovod
}

// trainingStarts lists the rows of the table. A warm horovodrun follows a cold one.
func trainingStarts() []trainingStart {
	return []trainingStart{
		{"`horovodrun --mpi`, cold", "--mpi", true},
		{"`horovodrun --mpi`, warm", "--mpi", false},
		{"`horovodrun --gloo`, cold", "--gloo", true},
		{"`mpirun`", "", false},
	}
}

// trainers is a column of the table: containers that train, and what their user types.
type trainers struct {
	title       string
	hosts       []string
	first       string // container in which the launcher runs
	environment string // script that sets the environment of the job's command; "" = none
	horovodrun  string // without the controller and the program
	mpirun      string // "" = it does not differ from another column

	begun, done []series // by start, s
}

// horovod is two clusters on one network of a Docker engine.
type horovod struct {
	name  string // part of the name of each object in the engine
	image string
	keys  string // directory
	train string // file
}

// measureHorovod measures the time from the start of horovodrun or mpirun to the first allreduce of a training, with
// paiinit and with OpenSSH. It builds Horovod from its source in the directory source.
func measureHorovod(ctx context.Context, binary, source string, rounds int) (r report, err error) {
	if source == "" {
		return r, errors.New("horovodrun needs -horovod DIR, the source of Horovod (integration/bench/horovod.sh)")
	}
	if binary, err = filepath.Abs(binary); err != nil {
		return r, err
	}
	h := horovod{name: "paiinit-bench-" + sweep.NewName()}
	if h.train, err = filepath.Abs("integration/bench/horovod.py"); err != nil {
		return r, err
	}
	if h.keys, err = os.MkdirTemp("", "paiinit-bench-"); err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(h.keys)) }()
	build := exec.CommandContext(ctx, "integration/bench/horovod.sh", source)
	build.Stderr = os.Stderr // the first build takes minutes
	tag, err := build.Output()
	if err != nil {
		return r, fmt.Errorf("building Horovod's image: %w", err)
	}
	h.image = strings.TrimSpace(string(tag))
	remove, err := sweep.Later(h.name)
	if err != nil {
		return r, err
	}
	defer remove()
	if _, err := docker(ctx, "network", "create", "--label", "paiinit-test=yes", h.name); err != nil {
		return r, err
	}
	ours, err := h.startOurs(ctx, binary)
	if err != nil {
		return r, err
	}
	theirs, err := h.startTheirs(ctx)
	if err != nil {
		return r, err
	}
	given := *theirs
	given.title, given.mpirun = "OpenSSH, `horovodrun --network-interfaces eth0`", ""
	given.horovodrun += " --network-interfaces eth0"
	columns := []*trainers{ours, theirs, &given}
	starts := trainingStarts()
	for _, c := range columns {
		c.begun, c.done = make([]series, len(starts)), make([]series, len(starts))
		if err := c.reach(ctx); err != nil {
			return r, err
		}
	}
	for round := range rounds + 1 { // the first round only warms the caches
		for i := range columns {
			if err := columns[(i+round)%len(columns)].measure(ctx, round > 0); err != nil {
				return r, err
			}
		}
	}
	version, err := ours.run(ctx, "horovodrun --version")
	return horovodReport(columns, strings.TrimSpace(version), rounds), err
}

// startOurs starts the containers with paiinit. The job's command only saves its environment, which the launchers need
// and a process of docker exec lacks.
func (h *horovod) startOurs(ctx context.Context, binary string) (*trainers, error) {
	hosts := trainingHosts("paiinit")
	for i, host := range hosts {
		err := h.start(ctx, host, []string{"--entrypoint", "paiinit", "--volume", binary + ":/usr/local/bin/paiinit:ro",
			"--env", "PAIINIT_SECRET=" + jobSecret, "--env", "PAIINIT_PEERS=" + strings.Join(hosts, ","),
			"--env", "PAIINIT_RANK=" + strconv.Itoa(i), "--env", "PAIINIT_SLOTS=1"},
			"--", "sh", "-c", "export -p >/environment; exec sleep infinity")
		if err != nil {
			return nil, err
		}
	}
	np := " -np " + strconv.Itoa(trainedHosts)
	return &trainers{title: "paiinit", hosts: hosts, first: h.container(hosts[0]), environment: ". /environment; ",
		horovodrun: "horovodrun" + np, mpirun: "mpirun" + np}, nil
}

// startTheirs starts the containers with OpenSSH, as Horovod's page about Docker does for several machines.
func (h *horovod) startTheirs(ctx context.Context) (*trainers, error) {
	volume := []string{"--volume", h.keys + ":/root/.ssh"}
	key := append(append([]string{"run", "--rm", "--name", h.name}, volume...), h.image, "sh", "-ec",
		"ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519; cp ~/.ssh/id_ed25519.pub ~/.ssh/authorized_keys")
	if _, err := docker(ctx, key...); err != nil {
		return nil, err
	}
	hosts := trainingHosts("openssh")
	for _, host := range hosts {
		if err := h.start(ctx, host, volume, "bash", "-c", "/usr/sbin/sshd -p 12345; sleep infinity"); err != nil {
			return nil, err
		}
	}
	options := fmt.Sprintf(" -np %d -H %s:1", trainedHosts, strings.Join(hosts, ":1,"))
	return &trainers{title: "OpenSSH", hosts: hosts, first: h.container(hosts[0]),
		horovodrun: "horovodrun -p 12345" + options,
		mpirun:     `mpirun --allow-run-as-root -mca plm_rsh_args "-p 12345"` + options}, nil
}

func trainingHosts(name string) (hosts []string) {
	for i := range trainedHosts {
		hosts = append(hosts, fmt.Sprintf("%s-%d", name, i))
	}
	return hosts
}

func (h *horovod) container(host string) string { return h.name + "-" + host }

// start starts a container that runs a command.
func (h *horovod) start(ctx context.Context, host string, options []string, command ...string) error {
	args := append([]string{"run", "--detach", "--name", h.container(host), "--label", "paiinit-test=yes",
		"--network", h.name, "--network-alias", host, "--hostname", host, "--volume", h.train + ":/train.py:ro",
		"--env", "HOROVOD_START_TIMEOUT=100"}, // a search for interfaces on a busy machine exceeds the default of 30 s
		options...)
	_, err := docker(ctx, append(append(args, h.image), command...)...)
	return err
}

// run runs a script in the first container.
func (t *trainers) run(ctx context.Context, script string) (string, error) {
	return docker(ctx, "exec", t.first, "sh", "-c", t.environment+script)
}

// reach waits until the first container can log in on all hosts. OpenSSH's client then knows their keys.
func (t *trainers) reach(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, trainingLimit)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for _, host := range t.hosts {
		for {
			_, err := t.run(ctx, "ssh -p 12345 "+host+" true")
			if err == nil {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("logging in on %s: %w", host, err)
			case <-tick.C:
			}
		}
	}
	return nil
}

// measure takes one value of each start, or only tries each of them.
func (t *trainers) measure(ctx context.Context, keep bool) error {
	for i, s := range trainingStarts() {
		command := t.mpirun + " -bind-to none -map-by slot -mca pml ob1 -mca btl ^openib"
		switch {
		case s.controller != "":
			command = t.horovodrun + " " + s.controller
		case t.mpirun == "":
			continue
		}
		begun, done, err := t.train(ctx, s.cold, command)
		if err != nil {
			return fmt.Errorf("%s, %s: %w", t.title, s.title, err)
		}
		if keep {
			t.begun[i], t.done[i] = append(t.begun[i], begun), append(t.done[i], done)
		}
	}
	return nil
}

// train runs the training and returns the seconds from the launcher's start until all ranks run the program, and until
// rank 0's first allreduce has completed.
func (t *trainers) train(ctx context.Context, cold bool, command string) (begun, done float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, trainingLimit)
	defer cancel()
	script := "date +%s.%N; exec " + command + " python3 /train.py"
	if cold {
		script = "rm -rf ~/.horovod; " + script
	}
	out, err := t.run(ctx, script)
	if err != nil {
		return 0, 0, err
	}
	return readTraining(out, t.hosts)
}

// readTraining reads the time of the launcher's start from the first line of the output, and the rest from rank 0's
// line, before which the launcher may have put its tag. It fails unless each host has run one rank.
func readTraining(out string, hosts []string) (begun, done float64, err error) {
	first, rest, _ := strings.Cut(out, "\n")
	from, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return 0, 0, fmt.Errorf("no time of the start in %q: %w", out, err)
	}
	_, line, _ := strings.Cut(rest, `{"begun"`)
	line, _, _ = strings.Cut(line, "\n")
	var said struct {
		Begun, Done, Sum float64
		Hosts            []string
	}
	if err := json.Unmarshal([]byte(`{"begun"`+line), &said); err != nil {
		return 0, 0, fmt.Errorf("no line of rank 0 in %q: %w", out, err)
	}
	slices.Sort(said.Hosts)
	if sum := len(hosts) * (len(hosts) + 1) / 2; said.Sum != float64(sum) || !slices.Equal(said.Hosts, hosts) {
		return 0, 0, fmt.Errorf("the sum is %v on %q, not %d on %q", said.Sum, said.Hosts, sum, hosts)
	}
	return said.Begun - from, said.Done - from, nil
}

// docker runs a command of Docker's client and returns its standard output; the error contains all output.
func docker(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "docker", args...)
	cmd.WaitDelay = 10 * time.Second
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%v: %w: %s%s", cmd, err, stdout.String(), stderr.String())
	}
	return stdout.String(), nil
}

func horovodReport(columns []*trainers, version string, rounds int) report {
	r := report{
		name:  "horovodrun",
		title: fmt.Sprintf("horovodrun on %d hosts", trainedHosts),
		intro: []string{
			fmt.Sprintf("horovodrun %s and Open MPI's mpirun start a training of PyTorch in %d containers of Debian "+
				"12 with one slot each, on a network of the Docker engine. All share the %d CPUs of one machine, "+
				"Linux %s, %s. Times are from the launcher's start until rank 0's first allreduce has completed. %d "+
				"rounds by turns. "+nineOfTen,
				version, trainedHosts, runtime.NumCPU(), release(), runtime.Version(), rounds),
			"With OpenSSH the command lines have `-H` and `-p 12345`, and the containers share their keys, as in " +
				"Horovod's page about Docker; with paiinit the lines have neither. Cold means without ~/.horovod, in " +
				"which horovodrun keeps for an hour that it could log in to all hosts, and the network interfaces " +
				"over which they reach each other. To find these, horovodrun starts a Python program on each host. " +
				"paiinit saves that: it makes the command line `horovodrun --network-interface eth0 ...`. In the " +
				"last column the user of OpenSSH has done the same.",
			"The last four rows are a part of the first four: until all ranks run the first line of the program. The " +
				"rest is the same work in all columns: importing PyTorch and Horovod, hvd.init() and the allreduce.",
		},
	}
	starts := trainingStarts()
	rows := make([][]string, 2*len(starts))
	for i, s := range starts {
		rows[i] = []string{s.title + ", s"}
		rows[len(starts)+i] = []string{s.title + ": until all ranks run the program, s"}
		for _, c := range columns {
			rows[i] = append(rows[i], c.done[i].cell("%.2f"))
			rows[len(starts)+i] = append(rows[len(starts)+i], c.begun[i].cell("%.2f"))
		}
	}
	for _, c := range columns {
		r.columns = append(r.columns, c.title)
	}
	r.rows = rows
	return r
}
