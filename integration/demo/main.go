// Command demo runs paiinit on one machine: it simulates hosts with namespaces, starts paiinit as PID 1 on each of them
// with the same command, and prints their output, the result, a timeline and the exit statuses.
//
//	go run ./integration/demo -n 4 -bin bin/paiinit [-fail] [-- COMMAND [ARG...]]
//
// It exits with 0 only if every host did and, with the default command, if the sum is right. With -fail, one host comes
// 5 s late and is killed while the command runs, and every other host must end with 75.
//
// Where namespaces or the launcher are missing, it says what to install, and runs a command on every rank of a job on
// the loopback address instead.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/paiinit/paiinit/integration/lab"
)

// example is the default command, whose output sumLine matches.
var example = []string{"mpirun", "python3", "examples/allreduce.py"}

// In the job that fails, the command must still run when a host is killed. small is the command of the job on the
// loopback address.
var (
	failing = []string{"mpirun", "sh", "-c", "echo step 1; sleep 600"}
	small   = []string{"sh", "-c", "echo rank $PAIINIT_RANK of $PAIINIT_SIZE, rank 0 is at $MASTER_ADDR"}
)

// lateness is how long the job that fails waits for its last host, at least: usually enough for the line that says so.
const lateness = 5 * time.Second

// hidden lists OpenSSH's programs, to prove that the demo does not use them.
var hidden = []string{"/usr/bin/ssh", "/usr/bin/rsh", "/usr/bin/slogin", "/usr/sbin/sshd"}

const path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

type options struct {
	hosts, slots int
	paiinit      string
	timeout      time.Duration
	command      []string
	usual        bool // the command is the demo's own
	fail         bool
}

// started is a container that runs.
type started interface {
	WaitLine(ctx context.Context, text string) (lab.Line, error)
	Wait(ctx context.Context) (status int, err error)
	Lines() []lab.Line
	Kill()
}

func main() {
	lab.Main()
	if err := run(os.Args[1:], os.Stdout); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "demo:", err)
		}
		os.Exit(1)
	}
}

func run(args []string, stdout *os.File) error {
	opts, err := parse(args)
	if err != nil {
		return err
	}
	show := newScreen(stdout)
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	ctx, cancel = context.WithTimeout(ctx, opts.timeout)
	defer cancel()
	var needs []lab.Need
	if opts.usual {
		needs = []lab.Need{
			{Try: []string{"/usr/bin/mpirun", "--version"}, Package: "openmpi-bin"},
			{Try: []string{"/usr/bin/python3", "-c", "import mpi4py"}, Package: "python3-mpi4py"},
		}
	}
	secret := rand.Text() + rand.Text() // 52 characters, which paiinit need not stretch
	missing := lab.Missing(needs...)
	if len(missing) > 0 && !opts.usual {
		return fmt.Errorf("the demo cannot run on this machine:\n  %s", strings.Join(missing, "\n  "))
	}
	if len(missing) > 0 {
		show.say("The demo with mpirun on %d hosts cannot run on this machine:\n  %s",
			opts.hosts, strings.Join(missing, "\n  "))
		return smaller(ctx, show, secret, opts)
	}
	show.say("%d hosts, each with %d slots, run: paiinit -- %s",
		opts.hosts, opts.slots, strings.Join(opts.command, " "))
	l, err := lab.New(lab.Config{OnLine: show.line})
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	machines, err := connect(l, opts.hosts)
	if err != nil {
		return err
	}
	starts, err := onMachines(machines, secret, opts)
	if err != nil {
		return err
	}
	return launch(ctx, show, starts, opts)
}

// smaller runs a job on the loopback address.
func smaller(ctx context.Context, show *screen, secret string, opts options) error {
	dir, err := os.MkdirTemp("", "paiinit-demo")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	opts.usual = false
	opts.command = small
	if opts.fail {
		opts.command = failing[1:]
	}
	show.say("A smaller demo: %d paiinit on 127.0.0.1 run: paiinit --exec all -- %s\n",
		opts.hosts, strings.Join(opts.command, " "))
	var all processes
	defer all.stop()
	starts, err := all.onLoopback(dir, secret, show.line, opts)
	if err != nil {
		return err
	}
	return launch(ctx, show, starts, opts)
}

func parse(args []string) (options, error) {
	opts := options{command: example}
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.IntVar(&opts.hosts, "n", 4, "number of hosts")
	flags.IntVar(&opts.slots, "slots", 2, "MPI ranks per host")
	flags.StringVar(&opts.paiinit, "bin", "bin/paiinit", "static paiinit binary")
	flags.BoolVar(&opts.fail, "fail", false, "show a job that fails")
	flags.DurationVar(&opts.timeout, "timeout", 2*time.Minute, "timeout of the demo")
	if err := flags.Parse(args); err != nil {
		return opts, err
	}
	switch opts.usual = flags.NArg() == 0; {
	case !opts.usual && opts.fail:
		return opts, errors.New("-fail shows a command of the demo's own: give one of the two")
	case !opts.usual:
		opts.command = flags.Args()
	case opts.fail:
		opts.command = failing
	}
	if opts.fail && opts.hosts < 2 {
		return opts, fmt.Errorf("-n %d: a job that loses a host has at least two", opts.hosts)
	}
	if opts.hosts < 1 || opts.slots < 1 {
		return opts, fmt.Errorf("-n %d -slots %d: a job needs at least one host and one slot", opts.hosts, opts.slots)
	}
	var err error
	if opts.paiinit, err = filepath.Abs(opts.paiinit); err != nil {
		return opts, err
	}
	if unix.Access(opts.paiinit, unix.X_OK) != nil {
		return opts, fmt.Errorf("no program %s; build it with: make build", opts.paiinit)
	}
	return opts, nil
}

func connect(l *lab.Lab, n int) ([]*lab.Machine, error) {
	machines := make([]*lab.Machine, n)
	for i := range machines {
		m, err := l.Machine(fmt.Sprintf("worker-%d", i))
		if err != nil {
			return nil, err
		}
		machines[i] = m
	}
	return machines, nil
}

// onMachines returns one start function for each machine.
func onMachines(machines []*lab.Machine, secret string, opts options) ([]func() (started, error), error) {
	here, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	var peers []string
	for _, m := range machines {
		peers = append(peers, m.Addr.String())
	}
	starts := make([]func() (started, error), len(machines))
	for i, m := range machines {
		starts[i] = func() (started, error) {
			return m.Start(lab.Program{
				Args:  append([]string{"/run/bin/paiinit", "--"}, opts.command...),
				Env:   append(environment(i, secret, peers), "PAIINIT_SLOTS="+strconv.Itoa(opts.slots)),
				Dir:   here,
				Binds: map[string]string{"/run/bin/paiinit": opts.paiinit, here: here},
				Hide:  hidden,
			})
		}
	}
	return starts, nil
}

// environment returns what each container of the job gets.
func environment(rank int, secret string, peers []string) []string {
	return []string{
		"PATH=" + path,
		"HOME=/tmp",
		"PAIINIT_JOB=demo",
		"PAIINIT_SECRET=" + secret,
		"PAIINIT_ROLE=worker",
		"PAIINIT_INDEX=" + strconv.Itoa(rank),
		"PAIINIT_PEERS=" + strings.Join(peers, ","),
	}
}

// launch starts all containers, waits until all have ended, and reports how.
func launch(ctx context.Context, show *screen, starts []func() (started, error), opts options) error {
	begin := time.Now()
	var containers []started
	last := len(starts) - 1
	for rank, start := range starts {
		if opts.fail && rank == last {
			show.say("(worker-%d comes in %v)", last, lateness)
			select {
			case <-time.After(lateness):
			case <-ctx.Done():
				return ctx.Err()
			}
			if _, err := containers[0].WaitLine(ctx, fmt.Sprintf("missing: worker-%d (", last)); err != nil {
				return err
			}
		}
		c, err := start()
		if err != nil {
			return err
		}
		containers = append(containers, c)
	}
	if opts.fail {
		if _, err := containers[0].WaitLine(ctx, "step 1"); err != nil {
			return err
		}
		show.say("(worker-%d is killed)", last)
		containers[last].Kill()
	}
	var statuses []int
	for _, c := range containers {
		status, err := c.Wait(ctx)
		if err != nil {
			return err
		}
		statuses = append(statuses, status)
	}
	return report(show, containers, statuses, begin, opts)
}

// sumLine matches the result of examples/allreduce.py.
var sumLine = regexp.MustCompile(`^allreduce over (\d+) ranks on (\d+) hosts: sum = (\d+), expected (\d+) `)

func report(show *screen, containers []started, statuses []int, begin time.Time, opts options) error {
	show.say("")
	var lines []lab.Line
	for _, c := range containers {
		lines = append(lines, c.Lines()...)
	}
	slices.SortStableFunc(lines, func(a, b lab.Line) int { return a.Time.Compare(b.Time) })

	problem := checkSum(show, lines, opts)
	show.say("timeline: %s", timeline(lines, begin))
	for i := range containers {
		show.say("worker-%d exited with %d", i, statuses[i])
	}
	want, living := 0, statuses
	if opts.fail {
		want, living = 75, statuses[:len(statuses)-1]
	}
	if slices.ContainsFunc(living, func(s int) bool { return s != want }) {
		problem = errors.Join(problem, fmt.Errorf("not every host exited with %d", want))
	}
	return problem
}

func checkSum(show *screen, lines []lab.Line, opts options) error {
	if !opts.usual || opts.fail {
		return nil
	}
	for _, l := range lines {
		m := sumLine.FindStringSubmatch(l.Text)
		if m == nil {
			continue
		}
		ranks := opts.hosts * opts.slots
		want := strconv.Itoa(ranks * (ranks + 1) / 2)
		show.say("the sum over %s ranks on %s hosts is %s", m[1], m[2], m[3])
		if m[2] != strconv.Itoa(opts.hosts) || m[3] != want || m[4] != want {
			return fmt.Errorf("%s is not the sum of %d ranks on %d hosts, which is %s", m[3], ranks, opts.hosts, want)
		}
		return nil
	}
	return errors.New("no host printed a sum")
}

// screen prints the lines of many hosts, each after the host's name.
type screen struct {
	mu    sync.Mutex
	w     io.Writer
	color bool
	names []string
}

func newScreen(f *os.File) *screen {
	return &screen{w: f, color: term.IsTerminal(int(f.Fd())) && os.Getenv("NO_COLOR") == ""}
}

func (s *screen) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.w, format+"\n", args...)
}

func (s *screen) line(l lab.Line) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := fmt.Sprintf("%-9s |", l.Container)
	if s.color {
		i := slices.Index(s.names, l.Container)
		if i < 0 {
			i = len(s.names)
			s.names = append(s.names, l.Container)
		}
		name = fmt.Sprintf("\x1b[%dm%s\x1b[0m", 31+i%6, name)
	}
	fmt.Fprintf(s.w, "%s %s\n", name, l.Text)
}
