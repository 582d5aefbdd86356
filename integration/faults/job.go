package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/integration/lab"
)

const (
	ranks       = 3
	last        = 2 // no fault hits this rank; where a phase needs a missing rank, it is this one
	jobSecret   = "a secret of a job with faults, which has 32 bytes or more"
	otherSecret = "a secret of another job, which has 32 bytes or more, too"

	timeout         = 30 * time.Second // --timeout where a rank stays missing, enough for the others on a busy machine
	completeTimeout = 2 * time.Minute  // --timeout where all ranks come
)

// Gates are pipes: a script that opens a closed gate waits.
const (
	secretGate = "secret" // --secret-file of the target in identify
	checkGate  = "check"  // --preflight
	launchGate = "launch" // Open MPI's daemons
	runGate    = "run"    // COMMAND
	failGate   = "fail"   // the rank that fails in clear
	clearGate  = "clear"  // a process that ignores SIGTERM
)

// preflight is a site's check that takes its time.
const preflight = `echo preflight waits >&2; : </run/gate/check`

// daemon stands for Open MPI's daemon on a slow file system.
const daemon = `#!/bin/sh
echo daemon of $PAIINIT_RANK waits >&2
: </run/gate/launch
exec /usr/bin/orted "$@"
`

// rankScript is what each rank of the job does under mpirun. MATRIX_* comes from the container. mpirun passes its empty
// stdin to rank 0 once it knows that all ranks have started (orte_plm_base_post_launch): if one fails before that, it
// may not say which.
const rankScript = `r=$OMPI_COMM_WORLD_RANK g=${PAIINIT_GENERATION:-1}
[ $r != 0 ] || cat
echo up $r in generation $g
if [ "$MATRIX_PHASE $g" = "clear 1" ]; then
	setsid sh -c 'trap "" TERM; echo >/run/ignores; : </run/gate/clear' >/dev/null 2>&1 &
	until [ -e /run/ignores ]; do sleep 0.01; done
	[ $r != 2 ] || { : </run/gate/fail; exit 5; }
fi
[ $g != 1 ] || : </run/gate/run
[ $g != 1 ] || [ -z "$MATRIX_MEMORY" ] || exec python3 -c "b = b'x' * $MATRIX_MEMORY"
echo done $r in generation $g`

// aloneScript is the job's command where no launcher is needed.
const aloneScript = `echo up 0 in generation 1; : </run/gate/run; echo done 0 in generation 1`

// binaries are the builds of paiinit that a job has.
type binaries struct {
	current string
	other   func() (string, error) // has another version
}

// host describes the containers of one rank.
type host struct {
	machine  *lab.Machine
	env      map[string]string
	flags    []string
	binds    map[string]string
	prologue string // a line for /bin/sh that runs before paiinit, in the same process
	starts   int
}

// trial is one run of a cell.
type trial struct {
	cell
	lab    *lab.Lab
	bin    binaries
	begin  time.Time
	dir    string // of the gates
	held   []*os.File
	hosts  [ranks]host
	now    [ranks]*lab.Container
	hit    *lab.Container // the target's container when the fault came
	guest  *lab.Container // a container that does not belong to the job
	absent *lab.Container // rank 2's, which was killed to hold the job in rejoin

	passed chan struct{} // closed when a fault that passes has passed; nil = it does not
	stop   context.CancelFunc
	ctx    context.Context // of work
	work   sync.WaitGroup

	mu     sync.Mutex
	failed error // of work
}

func rankName(rank int) string { return fmt.Sprintf("worker-%d", rank) }

func hostName(rank int) string { return rankName(rank) + ".job" }

func newTrial(ctx context.Context, c cell, bin binaries) (t *trial, err error) {
	t = &trial{cell: c, bin: bin, begin: time.Now()}
	t.ctx, t.stop = context.WithCancel(ctx)
	if t.dir, err = os.MkdirTemp("", "paiinit-faults-"); err != nil {
		return nil, err
	}
	for _, name := range []string{secretGate, checkGate, launchGate, runGate, failGate, clearGate} {
		err = errors.Join(err, unix.Mkfifo(t.gate(name), 0o666))
	}
	err = errors.Join(err, os.WriteFile(filepath.Join(t.dir, "orted"), []byte(daemon), 0o755))
	if err == nil {
		t.lab, err = lab.New(lab.Config{})
	}
	if err != nil {
		return t, errors.Join(err, t.close())
	}
	for rank := range ranks {
		m, merr := t.lab.Machine(fmt.Sprintf("node-%d", rank))
		if merr != nil {
			return t, errors.Join(merr, t.close())
		}
		t.lab.Name(hostName(rank), m.Addr)
		t.hosts[rank] = host{machine: m, env: t.environment(rank), binds: map[string]string{
			"/run/bin/paiinit": bin.current, "/run/gate": t.dir, "/run/hold/orted": filepath.Join(t.dir, "orted"),
		}, flags: t.flags()}
	}
	for _, name := range []string{checkGate, launchGate, runGate, failGate, clearGate} {
		if !slices.Contains(t.phase.closed, name) {
			err = errors.Join(err, t.open(name))
		}
	}
	if err != nil {
		return t, errors.Join(err, t.close())
	}
	return t, nil
}

func (t *trial) flags() []string {
	limit := completeTimeout
	if t.expect().within == missing {
		limit = timeout
	}
	flags := []string{"--timeout", limit.String()}
	if t.restarts {
		flags = append(flags, "--restarts", "3", "--restart-grace", "5s")
	}
	return flags
}

func (t *trial) environment(rank int) map[string]string {
	var names []string
	for i := range ranks {
		names = append(names, hostName(i))
	}
	return map[string]string{
		"PATH":               "/run/hold:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME":               "/tmp",
		"PAIINIT_SECRET":     jobSecret,
		"PAIINIT_JOB":        "train",
		"PAIINIT_ATTEMPT":    "2",
		"PAIINIT_ROLE":       "worker",
		"PAIINIT_INDEX":      fmt.Sprint(rank),
		"PAIINIT_PEERS":      strings.Join(names, ","),
		"PAIINIT_SLOTS":      "1",
		"PAIINIT_LOG_FORMAT": "text",
		"PAIINIT_LOG_LEVEL":  "debug", // shows the steps that a trial waits for
		"MATRIX_PHASE":       t.phase.name,
		"GOTRACEBACK":        "all", // for lab.Running
	}
}

// close ends what is left of the trial.
func (t *trial) close() error {
	t.stop()
	var err error
	if t.lab != nil {
		err = t.lab.Close()
	}
	t.work.Wait()
	for _, f := range t.held {
		err = errors.Join(err, f.Close())
	}
	return errors.Join(err, os.RemoveAll(t.dir))
}

func (t *trial) gate(name string) string { return filepath.Join(t.dir, name) }

// open opens a gate for everyone who waits there or comes later.
func (t *trial) open(name string) error {
	f, err := os.OpenFile(t.gate(name), os.O_RDWR, 0)
	if err == nil {
		t.held = append(t.held, f)
	}
	return err
}

// reader waits until a process waits at a gate, and returns what it reads from.
func (t *trial) reader(ctx context.Context, name string) (*os.File, error) {
	for {
		f, err := os.OpenFile(t.gate(name), os.O_WRONLY|unix.O_NONBLOCK, 0)
		if !errors.Is(err, unix.ENXIO) {
			return f, err
		}
		select { // nothing tells when another process opens a pipe
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for a process at the gate %s: %w", name, ctx.Err())
		}
	}
}

// target is the rank that the fault hits; witness is the one whose log shows it.
func (t *trial) target() *host { return &t.hosts[t.role.rank] }

func (c cell) witness() int { return 1 - c.role.rank }

func (t *trial) command() []string {
	if t.phase.launcher {
		return []string{"mpirun", "-npernode", "1", "sh", "-c", rankScript}
	}
	return []string{"sh", "-c", aloneScript}
}

// start starts the next container of a rank.
func (t *trial) start(rank int) error {
	c, err := t.hosts[rank].start(rankName(rank), t.command())
	if err == nil {
		t.now[rank] = c
	}
	return err
}

func (h *host) start(name string, command []string) (*lab.Container, error) {
	if h.starts++; h.starts > 1 {
		name += fmt.Sprintf(", start %d", h.starts)
	}
	args := slices.Concat([]string{"/run/bin/paiinit"}, h.flags, []string{"--"}, command)
	if h.prologue != "" {
		args = append([]string{"/bin/sh", "-c", h.prologue + `
exec "$@"`, "sh"}, args...)
	}
	var env []string
	for _, key := range slices.Sorted(maps.Keys(h.env)) {
		env = append(env, key+"="+h.env[key])
	}
	return h.machine.Start(lab.Program{
		Name: name, Args: args, Env: env, Binds: h.binds, Tmpfs: []string{"/job"}, Hide: []string{"/usr/bin/ssh"},
	})
}

func (t *trial) startAll(list ...int) error {
	for _, rank := range list {
		if err := t.start(rank); err != nil {
			return err
		}
	}
	return nil
}

// says waits until a rank's container prints the text.
func (t *trial) says(ctx context.Context, rank int, text string) error {
	_, err := t.now[rank].WaitLine(ctx, text)
	return err
}

// replace starts the next container of a rank whose container has ended.
func (t *trial) replace(ctx context.Context, rank int) error {
	select {
	case <-t.now[rank].Ended():
		return t.start(rank)
	case <-ctx.Done():
		return fmt.Errorf("waiting for the end of %s: %w", rankName(rank), ctx.Err())
	}
}

// later runs f in the background, and ends the trial if f fails.
func (t *trial) later(f func(ctx context.Context) error) {
	t.work.Go(func() {
		err := f(t.ctx)
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.ctx.Err() == nil {
			t.failed = errors.Join(t.failed, err)
		}
	})
}

func (t *trial) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failed = errors.Join(t.failed, err)
}

// copyOf returns the target's host on a machine of its own.
func (t *trial) copyOf(rank int, machine string) (host, error) {
	h := t.hosts[rank]
	h.env, h.flags, h.starts = maps.Clone(h.env), slices.Clone(h.flags), 0
	var err error
	h.machine, err = t.lab.Machine(machine)
	return h, err
}
