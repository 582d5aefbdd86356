// Command demo runs paiinit on one machine: it simulates hosts with namespaces, starts paiinit as PID 1 on each of them
// with the same command, and prints their output, the result, a timeline and the exit statuses.
//
//	go run ./integration/demo -n 4 -bin bin/paiinit [-- COMMAND [ARG...]]
//
// It exits with 0 only if every host did and, with the default command, if the sum is right.
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
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/paiinit/paiinit/integration/lab"
)

// example is the default command, whose output sumLine matches.
var example = []string{"mpirun", "python3", "examples/allreduce.py"}

// hidden lists OpenSSH's programs, to prove that the demo does not use them.
var hidden = []string{"/usr/bin/ssh", "/usr/bin/rsh", "/usr/bin/slogin", "/usr/sbin/sshd"}

const path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

type options struct {
	hosts, slots int
	paiinit      string
	timeout      time.Duration
	command      []string
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
	var needs []lab.Need
	if slices.Equal(opts.command, example) {
		needs = []lab.Need{
			{Try: []string{"/usr/bin/mpirun", "--version"}, Package: "openmpi-bin"},
			{Try: []string{"/usr/bin/python3", "-c", "import mpi4py"}, Package: "python3-mpi4py"},
		}
	}
	if missing := lab.Missing(needs...); len(missing) > 0 {
		return fmt.Errorf("the demo cannot run on this machine:\n  %s", strings.Join(missing, "\n  "))
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	ctx, cancel = context.WithTimeout(ctx, opts.timeout)
	defer cancel()

	show := newScreen(stdout)
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
	begin := time.Now()
	statuses, err := launch(ctx, machines, opts)
	if err != nil {
		return err
	}
	return report(show, l.Containers(), statuses, begin, opts)
}

func parse(args []string) (options, error) {
	opts := options{command: example}
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.IntVar(&opts.hosts, "n", 4, "number of hosts")
	flags.IntVar(&opts.slots, "slots", 2, "MPI ranks per host")
	flags.StringVar(&opts.paiinit, "bin", "bin/paiinit", "static paiinit binary")
	flags.DurationVar(&opts.timeout, "timeout", 2*time.Minute, "timeout of the demo")
	if err := flags.Parse(args); err != nil {
		return opts, err
	}
	if flags.NArg() > 0 {
		opts.command = flags.Args()
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

// launch starts paiinit on all machines, waits until all have ended, and returns the exit statuses by rank.
func launch(ctx context.Context, machines []*lab.Machine, opts options) ([]int, error) {
	here, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	var peers []string
	for _, m := range machines {
		peers = append(peers, m.Addr.String())
	}
	secret := rand.Text() + rand.Text() // 52 characters, which paiinit need not stretch
	var containers []*lab.Container
	for i, m := range machines {
		c, err := m.Start(lab.Program{
			Args: append([]string{"/run/bin/paiinit", "--"}, opts.command...),
			Env: []string{
				"PATH=" + path,
				"HOME=/tmp",
				"PAIINIT_JOB=demo",
				"PAIINIT_SECRET=" + secret,
				"PAIINIT_ROLE=worker",
				"PAIINIT_INDEX=" + strconv.Itoa(i),
				"PAIINIT_PEERS=" + strings.Join(peers, ","),
				"PAIINIT_SLOTS=" + strconv.Itoa(opts.slots),
			},
			Dir:   here,
			Binds: map[string]string{"/run/bin/paiinit": opts.paiinit, here: here},
			Hide:  hidden,
		})
		if err != nil {
			return nil, err
		}
		containers = append(containers, c)
	}
	var statuses []int
	for _, c := range containers {
		status, err := c.Wait(ctx)
		if err != nil {
			return nil, err
		}
		statuses = append(statuses, status)
	}
	return statuses, nil
}

// sumLine matches the result of examples/allreduce.py.
var sumLine = regexp.MustCompile(`^allreduce over (\d+) ranks on (\d+) hosts: sum = (\d+), expected (\d+) `)

func report(show *screen, containers []*lab.Container, statuses []int, begin time.Time, opts options) error {
	show.say("")
	var lines []lab.Line
	for _, c := range containers {
		lines = append(lines, c.Lines()...)
	}
	slices.SortStableFunc(lines, func(a, b lab.Line) int { return a.Time.Compare(b.Time) })

	problem := checkSum(show, lines, opts)
	show.say("timeline: %s", timeline(lines, begin))
	for i, c := range containers {
		show.say("%s exited with %d", c.Name, statuses[i])
	}
	if slices.ContainsFunc(statuses, func(s int) bool { return s != 0 }) {
		problem = errors.Join(problem, errors.New("not every host exited with 0"))
	}
	return problem
}

func checkSum(show *screen, lines []lab.Line, opts options) error {
	if !slices.Equal(opts.command, example) {
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
	w     io.Writer
	color bool
	names []string
}

func newScreen(f *os.File) *screen {
	return &screen{w: f, color: term.IsTerminal(int(f.Fd())) && os.Getenv("NO_COLOR") == ""}
}

func (s *screen) say(format string, args ...any) { fmt.Fprintf(s.w, format+"\n", args...) }

func (s *screen) line(l lab.Line) {
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
