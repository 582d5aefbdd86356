package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/integration/lab"
)

// effect is what a fault means for the job: the oracle knows effects, not faults.
type effect int

const (
	harmless   effect = iota // the job goes on
	delays                   // the job waits for the rank, and goes on
	kills                    // the container has ended
	cuts                     // the container runs, and no other one reaches it
	fails                    // COMMAND has failed
	unwritable               // the container cannot write its files any more
	unable                   // the container ends before it can tell the others
	misfit                   // the ranks find out that the container does not fit
	guest                    // a container that is not of this job is refused
	outdated                 // a container of the job has another version
	rival                    // a container of this job is one too many
)

// fault is something that goes wrong, at a rank.
type fault struct {
	name   string
	does   string // for the page
	effect effect
	status int    // of the container that ends because of it, of the guest, or of the job
	names  string // pattern of what the log says about the cause
	slow   time.Duration

	phases []string // nil = all but listen
	only   string   // why in these phases only
	rank   int      // if alone is set, the only rank that it hits
	alone  string   // why this rank only

	needs   func() error                              // why this host cannot do it; nil = every host can
	prepare func(t *trial)                            // changes the target's containers before they start
	inject  func(ctx context.Context, t *trial) error // does it while the phase is held; nil = nothing
}

// pauseTime is longer than the 6 s after which ranks notice that rank 0 is silent; flapTime is shorter.
const (
	pauseTime = 8 * time.Second
	flapTime  = 3 * time.Second
)

// Why a fault is not in every phase, or not at every rank.
const (
	fromTheStart  = "a fault that is there when the container starts shows in *listen* or *gather*: it is in *listen*"
	ofTheLauncher = "launcher, daemons and processes of the job exist only in *launch* and *run*"
	dialled       = "the port of a rank that does not come is dialled in *gather*"
	sameMemory    = "the memory of a container that waits is the same in all phases"
	cached        = "before *check* it is chance whether a name has been resolved: *listen* has the fault " +
		"from the start"
	ofNextStarts = "a container starts again in *rejoin*"
	oneNextStart = "the next start is that of rank 2: it is listed once"
	oneLauncher  = "the launcher runs on rank 0 only"
	noDaemon     = "on rank 0's host the launcher is its own daemon"
	oneServer    = "the name server serves all ranks: its faults are listed once"
)

var (
	start    = []string{listen}
	launched = []string{launch, run}
)

var faults = []fault{
	{
		name: "kill agent", does: "`kill -9` of paiinit's second process", effect: kills, status: 70,
		inject: func(ctx context.Context, t *trial) error {
			return errors.Join(t.signalAgent(unix.SIGKILL), t.ended(ctx))
		},
	},
	{
		name: "kill PID 1", does: "`kill -9` of the container's first process, as by the loss of its host or engine",
		effect: kills, status: 128 + 9,
		inject: func(ctx context.Context, t *trial) error {
			t.hit.Kill()
			return t.ended(ctx)
		},
	},
	{
		name: "kill launcher", does: "`kill -9` of mpirun", effect: fails, status: 128 + 9,
		names:  "command mpirun was killed by SIGKILL|command mpirun ended with status 137",
		phases: launched, only: ofTheLauncher, rank: 0, alone: oneLauncher,
		inject: func(_ context.Context, t *trial) error { return t.killProcess("mpirun", nil) },
	},
	{
		name: "kill daemon", does: "`kill -9` of Open MPI's daemon", effect: fails,
		names:  "Open MPI: ORTE has lost|Open MPI could not start its daemons",
		phases: launched, only: ofTheLauncher, rank: 1, alone: noDaemon,
		inject: func(_ context.Context, t *trial) error { return t.killProcess("orted", nil) },
	},
	{
		name: "kill rank process", does: "`kill -9` of a process of the job", effect: fails, status: 128 + 9,
		names: `MPI rank \d .*was killed by SIGKILL`, phases: []string{run}, only: ofTheLauncher,
		inject: func(_ context.Context, t *trial) error {
			return t.killProcess("sh", func(p lab.Process) bool { return slices.Contains(p.Args, rankScript) })
		},
	},
	{
		name: "stop agent", does: fmt.Sprintf("SIGSTOP of paiinit's second process, and SIGCONT after %v", pauseTime),
		effect: delays, slow: pauseTime,
		inject: func(_ context.Context, t *trial) error {
			t.after(pauseTime, func() error { return t.signalAgent(unix.SIGCONT) })
			return t.signalAgent(unix.SIGSTOP)
		},
	},
	{
		name:   "freeze container",
		does:   fmt.Sprintf("the kernel's freezer stops the container for %v, as `docker pause` does", pauseTime),
		effect: delays, slow: pauseTime, needs: lab.Cgroups,
		inject: func(_ context.Context, t *trial) error {
			t.after(pauseTime, t.hit.Thaw)
			return t.hit.Freeze()
		},
	},
	{
		name: "link down", does: "the cable of the host is unplugged, for good", effect: cuts,
		inject: func(_ context.Context, t *trial) error { return t.hit.Machine.CutOff() },
	},
	{
		name: "link flaps", does: fmt.Sprintf("the cable of the host is unplugged for %v", flapTime), effect: delays,
		slow: flapTime,
		inject: func(_ context.Context, t *trial) error {
			t.after(flapTime, t.hit.Machine.Reconnect)
			return t.hit.Machine.CutOff()
		},
	},
	{
		name:   "loss and delay",
		does:   "every packet from and to the host takes 50 ms longer, and a tenth of them is lost, from now on",
		effect: delays, slow: time.Minute,
		inject: func(_ context.Context, t *trial) error { return t.hit.Machine.Slow(50*time.Millisecond, 0.1) },
	},
	{
		name: "DNS late", does: "the hosts' names do not exist, and are published after 2 s", effect: delays,
		slow: 10 * time.Second, phases: start, only: fromTheStart, alone: oneServer,
		prepare: func(t *trial) {
			t.rename(nil)
			t.after(2*time.Second, func() error {
				t.rename(func(rank int) netip.Addr { return t.hosts[rank].machine.Addr })
				return nil
			})
		},
	},
	{
		name: "DNS wrong", does: "the hosts' names have the address of another machine, where nothing listens",
		effect: misfit, status: 75, names: "connection refused", phases: start, only: fromTheStart, alone: oneServer,
		prepare: func(t *trial) {
			m, err := t.lab.Machine("wrong")
			t.fail(err)
			if err == nil {
				t.rename(func(int) netip.Addr { return m.Addr })
			}
		},
	},
	{
		name: "DNS gone at the start", does: "the name server answers nothing", effect: misfit, status: 75,
		names: "name .* did not resolve|cannot be resolved", phases: start, only: fromTheStart, alone: oneServer,
		prepare: func(t *trial) { t.lab.MuteNames(true) },
	},
	{
		name:   "DNS gone",
		does:   "the name server answers nothing, from now on; Open MPI's own lookups then take a minute",
		effect: harmless, slow: 75 * time.Second,
		phases: []string{check, launch, run, clearing, rejoin, exit}, only: cached, alone: oneServer,
		inject: func(_ context.Context, t *trial) error {
			t.lab.MuteNames(true)
			return nil
		},
	},
	{
		name: "disk full", does: "`/run`, `/tmp` and `/dev/shm` are full, from now on", effect: harmless,
		inject: func(ctx context.Context, t *trial) error { return t.inside(ctx, fillDisk) },
	},
	{
		name: "disk full at the start", does: "`/run`, `/tmp` and `/dev/shm` are full when the container starts",
		effect: unable, status: 69, names: "no space left on device", phases: start, only: fromTheStart,
		prepare: func(t *trial) { t.target().prologue = fillDisk },
	},
	{
		name: "read-only", does: "all file systems of the container are read-only, from now on", effect: unwritable,
		status: 69, names: "read-only file system",
		inject: func(ctx context.Context, t *trial) error { return t.inside(ctx, readOnly) },
	},
	{
		name: "read-only at the start", does: "all file systems of the container are read-only when it starts",
		effect: unable, status: 69, names: "no directory for the state can be used", phases: start, only: fromTheStart,
		prepare: func(t *trial) { t.target().prologue = readOnly },
	},
	{
		name: "port taken", does: "another program listens on paiinit's port of this host", effect: harmless,
		names: "the port is taken, using another one", phases: start, only: fromTheStart,
		prepare: func(t *trial) { t.squat(t.target().machine) },
	},
	{
		name: "port silent", does: "the rank ends, and a program that says nothing listens on its port", effect: unable,
		status: 128 + 9, names: "no answer", phases: []string{gather}, only: dialled,
		inject: func(ctx context.Context, t *trial) error {
			t.hit.Kill()
			err := t.ended(ctx)
			t.squat(t.hit.Machine)
			return err
		},
	},
	descriptors(64),
	descriptors(1024),
	{
		name: "memory limit", does: "the container may have 64 MiB, and its process of the job takes 200 MiB",
		effect: fails, status: 128 + 9, names: `MPI rank \d .*was killed by SIGKILL`, needs: lab.Cgroups,
		phases: []string{run}, only: ofTheLauncher,
		prepare: func(t *trial) { t.target().env["MATRIX_MEMORY"] = fmt.Sprint(200 << 20) },
		inject: func(_ context.Context, t *trial) error {
			return errors.Join(t.hit.LimitMemory(64<<20), t.open(runGate))
		},
	},
	{
		name: "small memory", does: "the container may have 64 MiB, which is enough for paiinit", effect: harmless,
		needs: lab.Cgroups, phases: []string{gather, run, exit}, only: sameMemory,
		inject: func(_ context.Context, t *trial) error { return t.hit.LimitMemory(64 << 20) },
	},
	{
		name: "wrong secret", does: "the container has another secret than the others", effect: misfit, status: 77,
		names: "has another secret", phases: start, only: fromTheStart,
		prepare: func(t *trial) { t.target().env["PAIINIT_SECRET"] = otherSecret },
	},
	{
		name: "stale attempt", does: "the container belongs to an earlier attempt", effect: misfit, status: 78,
		names: "belongs to another job or attempt", phases: start, only: fromTheStart,
		prepare: func(t *trial) { t.target().env["PAIINIT_ATTEMPT"] = "1" },
	},
	{
		name: "version skew", does: "the container has another version of paiinit", effect: misfit, status: 69,
		names: "different versions of paiinit", phases: start, only: fromTheStart,
		prepare: func(t *trial) {
			other, err := t.bin.other()
			t.fail(err)
			t.target().binds["/run/bin/paiinit"] = other
		},
	},
	{
		name:   "guest with another secret",
		does:   "on another host a container starts with the rank's name and another secret",
		effect: guest, status: 77, names: "has another secret",
		inject: func(_ context.Context, t *trial) error {
			return t.invite(func(h *host) { h.env["PAIINIT_SECRET"] = otherSecret })
		},
	},
	{
		name:   "guest of an earlier attempt",
		does:   "on another host a container of an earlier attempt starts with the rank's name",
		effect: guest, status: 78, names: "belongs to another job or attempt",
		inject: func(_ context.Context, t *trial) error {
			return t.invite(func(h *host) { h.env["PAIINIT_ATTEMPT"] = "1" })
		},
	},
	{
		name: "second claimant", does: "on another host a second container of the job starts with the rank's name",
		effect: rival, status: 78, names: "is taken|both say that they are rank 0",
		inject: func(_ context.Context, t *trial) error { return t.invite(func(*host) {}) },
	},
	{
		name: "next start with another secret", does: "the next start of rank 2's container has another secret",
		effect: guest, status: 77, names: "has another secret", phases: []string{rejoin}, only: ofNextStarts,
		rank: 1, alone: oneNextStart,
		inject: func(_ context.Context, t *trial) error {
			return t.returns(func(h *host) { h.env["PAIINIT_SECRET"] = otherSecret })
		},
	},
	{
		name: "next start of another attempt", does: "the next start of rank 2's container belongs to another attempt",
		effect: guest, status: 78, names: "belongs to another job or attempt", phases: []string{rejoin},
		only: ofNextStarts, rank: 1, alone: oneNextStart,
		inject: func(_ context.Context, t *trial) error {
			return t.returns(func(h *host) { h.env["PAIINIT_ATTEMPT"] = "3" })
		},
	},
	{
		name:   "next start of another version",
		does:   "the next start of rank 2's container has another version of paiinit",
		effect: outdated, status: 69, names: "different versions of paiinit", phases: []string{rejoin},
		only: ofNextStarts, rank: 1, alone: oneNextStart,
		inject: func(_ context.Context, t *trial) error {
			other, err := t.bin.other()
			return errors.Join(err, t.returns(func(h *host) { h.binds["/run/bin/paiinit"] = other }))
		},
	},
	{
		name: "stderr blocked", does: "nothing reads the container's standard error any more", effect: harmless,
		inject: func(_ context.Context, t *trial) error {
			t.later(func(ctx context.Context) error { return readAfterEnd(ctx, t.hit) })
			return t.hit.BlockStderr()
		},
	},
}

// descriptors is a limit of open files, from the container's start.
func descriptors(n int) fault {
	return fault{
		name: fmt.Sprintf("%d descriptors", n), does: fmt.Sprintf("the container may have %d open files", n),
		effect: harmless, phases: start, only: fromTheStart,
		prepare: func(t *trial) { t.target().prologue = fmt.Sprintf("ulimit -n %d", n) },
	}
}
