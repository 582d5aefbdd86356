package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/paiinit/paiinit/integration/lab"
)

// jobSize is the number of hosts in the job.
const jobSize = 64

// slowRounds is the number of paiinit's rounds per round of the slow loops.
const slowRounds = 3

// noiseTime is how long the agents of a running job are watched.
const noiseTime = 20 * time.Second

// cluster is the hosts of a job and the files that their containers see.
type cluster struct {
	lab            *lab.Lab
	machines       []*lab.Machine
	addrs          []string
	binary, inside string
	stamp          string // program that prints when it was executed
	gate           string // FIFO on which all containers wait before they start; "" = they do not wait
	logs           string // directory for the containers' logs; "" = drop them
	key            string // private key of the ssh client; "" = none
	binds          map[string]string
	tmpfs          []string
	containers     []*lab.Container
	ours, ssh, tcp series // ms
	short          series // ms; like ours, with a short secret
	http, probed   series // ms; like ours, with --http, and with probes as well
	barrier, noise series
	cpu            series
}

// measureRendezvous measures the time from the last host's start to the job's start, with paiinit and with the loops
// that people write.
func measureRendezvous(ctx context.Context, binary string, rounds int) (report, error) {
	if missing := lab.Missing(lab.Need{Try: []string{"ssh", "-V"}, Package: "openssh-client"}); len(missing) > 0 {
		return report{}, errors.New(strings.Join(missing, "; "))
	}
	dir, err := os.MkdirTemp("", "paiinit-bench-")
	if err != nil {
		return report{}, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	c := &cluster{inside: filepath.Join(dir, "inside"), stamp: filepath.Join(dir, "stamp"),
		key: filepath.Join(dir, "key")}
	defer func() { _ = c.close() }()
	if err := c.open(ctx, binary, jobSize+1); err != nil { // the last one is for probes
		return report{}, err
	}
	if out, err := exec.CommandContext(ctx, c.inside, "key", "user", c.key).CombinedOutput(); err != nil {
		return report{}, fmt.Errorf("making a key: %w: %s", err, out)
	}
	for round := range rounds {
		for _, o := range []ours{
			{what: "paiinit", secret: jobSecret, into: &c.ours, watch: round == 0},
			{what: "paiinit with a short secret", secret: shortSecret, into: &c.short},
			{what: "paiinit --http", secret: jobSecret, into: &c.http, http: true},
			{what: "paiinit that is probed", secret: jobSecret, into: &c.probed, http: true, rate: probeRate},
		} {
			if err := c.measureOurs(ctx, o); err != nil {
				return report{}, fmt.Errorf("%s: %w", o.what, errors.Join(err, c.end(ctx, true)))
			}
		}
		if round%slowRounds != 0 {
			continue
		}
		for _, loop := range []struct {
			script string
			into   *series
		}{{sshLoop, &c.ssh}, {tcpLoop, &c.tcp}} {
			if err := c.measureLoop(ctx, loop.script, loop.into); err != nil {
				return report{}, fmt.Errorf("a loop: %w", errors.Join(err, c.end(ctx, true)))
			}
		}
	}
	return c.report(rounds), nil
}

// stampSource is a program in C, because a Go program's own start would add to the measured time.
//
//go:embed stamp/stamp.c
var stampSource string

// open builds the programs and creates the hosts.
func (c *cluster) open(ctx context.Context, binary string, hosts int) (err error) {
	if err := buildInside(ctx, c.inside, "./integration/bench/inside"); err != nil {
		return err
	}
	if err := compile(ctx, stampSource, c.stamp); err != nil {
		return err
	}
	if c.binary, err = filepath.Abs(binary); err != nil {
		return err
	}
	if c.lab, err = lab.New(lab.Config{FixedNeighbours: true}); err != nil {
		return err
	}
	for i := range hosts {
		m, err := c.lab.Machine(fmt.Sprintf("worker-%d", i))
		if err != nil {
			return err
		}
		c.machines, c.addrs = append(c.machines, m), append(c.addrs, m.Addr.String())
	}
	return nil
}

func (c *cluster) close() error {
	if c.lab == nil {
		return nil
	}
	return c.lab.Close()
}

// start starts a program on a host, behind a stamp of its start.
func (c *cluster) start(i int, env []string, args ...string) (*lab.Container, error) {
	binds := map[string]string{"/run/bin/inside": c.inside, "/run/bin/stamp": c.stamp, "/run/bin/paiinit": c.binary}
	if c.key != "" {
		binds["/run/key"] = c.key
	}
	maps.Copy(binds, c.binds)
	first := []string{"/run/bin/stamp", "start"}
	if c.gate != "" {
		binds["/run/gate"] = c.gate
		first = []string{"/run/bin/stamp", "-w", "/run/gate", "start"}
	}
	p, err := c.machines[i].Start(lab.Program{
		Args:  append(first, args...),
		Env:   append(env, "PATH=/run/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME=/tmp"),
		Binds: binds,
		Tmpfs: c.tmpfs,
	})
	if err == nil {
		c.containers = append(c.containers, p)
	}
	return p, err
}

// end waits until all containers have ended; with kill, it kills them first.
func (c *cluster) end(ctx context.Context, kill bool) error {
	for _, p := range c.containers {
		if kill {
			p.Kill()
		}
		if _, err := p.Wait(ctx); err != nil {
			return err
		}
	}
	c.containers = nil
	return nil
}

// stamp waits until the container prints the stamp of that name, and returns its time.
func stamp(ctx context.Context, p *lab.Container, name string) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	prefix := "stamp:" + name + ":"
	line, err := p.WaitLine(ctx, prefix)
	if err != nil {
		return time.Time{}, err
	}
	ns, err := strconv.ParseInt(strings.TrimPrefix(line.Text, prefix), 10, 64)
	return time.Unix(0, ns), err
}

// since appends the time between two stamps to the series.
func (s *series) since(
	ctx context.Context, from *lab.Container, fromName string, to *lab.Container, toName string,
) error {
	begin, err := stamp(ctx, from, fromName)
	if err != nil {
		return err
	}
	end, err := stamp(ctx, to, toName)
	if err == nil {
		*s = append(*s, milliseconds(end.Sub(begin)))
	}
	return err
}

// probeRate is how many probes a second come to a job that is probed.
const probeRate = 1000

// ours is a measurement of paiinit's launch.
type ours struct {
	what, secret string
	into         *series
	http         bool
	rate         int  // of probes, 1/s
	watch        bool // measure the barrier and the noise of the running job, too
}

func (c *cluster) measureOurs(ctx context.Context, o ours) error {
	// The line that counts the ranks is logfmt or JSON in all builds; sentences have come later.
	env := []string{"PAIINIT_SECRET=" + o.secret, "PAIINIT_ROLE=worker",
		"PAIINIT_PEERS=" + strings.Join(c.addrs[:jobSize], ","), "PAIINIT_LOG_FORMAT=json"}
	if o.http {
		env = append(env, "PAIINIT_HTTP=1")
	}
	start := func(i int) (*lab.Container, error) {
		return c.start(i, append(env, "PAIINIT_INDEX="+strconv.Itoa(i)),
			"/run/bin/paiinit", "--", "/run/bin/stamp", "launched", "/bin/sleep", "1000")
	}
	for i := range jobSize - 1 {
		if _, err := start(i); err != nil {
			return err
		}
	}
	zero := c.containers[0]
	waiting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if _, err := zero.WaitLine(waiting, fmt.Sprintf(`"present":%d,`, jobSize-1)); err != nil {
		return err
	}
	if o.rate > 0 {
		probes, err := c.start(jobSize, nil, append([]string{"/run/bin/inside", "probe", strconv.Itoa(o.rate)},
			c.addrs[:jobSize]...)...)
		if err != nil {
			return err
		}
		c.containers = c.containers[:jobSize-1] // it does not end with the job
		defer func() {
			probes.Kill()
			<-probes.Ended()
		}()
		if _, err := probes.WaitLine(waiting, "answers"); err != nil {
			return err
		}
	}
	settleDown(ctx)
	last, err := start(jobSize - 1)
	if err == nil {
		err = o.into.since(ctx, last, "start", zero, "launched")
	}
	if err != nil {
		return err
	}
	if o.watch {
		if err := c.measureBarrier(ctx); err != nil {
			return err
		}
		if err := c.measureNoise(ctx); err != nil {
			return err
		}
	}
	if err := zero.Signal(15); err != nil {
		return err
	}
	return c.end(ctx, false)
}

// settleDown lets the containers become idle. The random part keeps measurements out of step with periodic work.
func settleDown(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(time.Second + rand.N(time.Second)):
	}
}

// measureBarrier has all ranks but one wait at a barrier, and measures the last one.
func (c *cluster) measureBarrier(ctx context.Context) error {
	for range 5 {
		errs := make([]error, len(c.containers))
		var calls sync.WaitGroup
		call := func(i int) {
			_, errs[i] = c.containers[i].Exec(ctx, "/run/bin/paiinit", "barrier", "bench", "--timeout", "1m")
		}
		last := rand.IntN(len(c.containers))
		for i := range c.containers {
			if i != last {
				calls.Go(func() { call(i) })
			}
		}
		settleDown(ctx)
		out, err := c.containers[last].Exec(ctx, "sh", "-c", "stamp a; paiinit barrier bench --timeout 1m && stamp b")
		calls.Wait()
		if err = errors.Join(append(errs, err)...); err != nil {
			return err
		}
		var a, b int64
		if _, err := fmt.Sscanf(string(out), "stamp:a:%d\nstamp:b:%d\n", &a, &b); err != nil {
			return fmt.Errorf("%q: %w", out, err)
		}
		c.barrier = append(c.barrier, milliseconds(time.Duration(b-a)))
	}
	return nil
}

// measureNoise watches every container while the job runs.
func (c *cluster) measureNoise(ctx context.Context) error {
	settleDown(ctx)
	noise, err := c.watch(ctx, noiseTime)
	c.noise, c.cpu = append(c.noise, noise.switches...), append(c.cpu, noise.cpu...)
	return err
}

// noise is what PID 1 and the agent of each container do.
type noise struct {
	switches series // 1/s
	cpu      series // %
}

// watch watches all containers.
func (c *cluster) watch(ctx context.Context, watched time.Duration) (n noise, err error) {
	type usage struct {
		switches float64
		cpu      time.Duration
	}
	look := func(p *lab.Container) (u usage, err error) {
		agents, err := agentsOf(p)
		for _, pid := range append(agents, p.PID()) {
			if err != nil {
				break
			}
			var n float64
			var d time.Duration
			if n, err = voluntary(pid); err == nil {
				d, err = cpuTime(pid)
			}
			u.switches, u.cpu = u.switches+n, u.cpu+d
		}
		return u, err
	}
	before := make([]usage, len(c.containers))
	begin := make([]time.Time, len(c.containers))
	for i, p := range c.containers {
		begin[i] = time.Now()
		if before[i], err = look(p); err != nil {
			return n, err
		}
	}
	select {
	case <-ctx.Done():
		return n, ctx.Err()
	case <-time.After(watched):
	}
	for i, p := range c.containers {
		seconds := time.Since(begin[i]).Seconds()
		after, err := look(p)
		if err != nil {
			return n, err
		}
		n.switches = append(n.switches, (after.switches-before[i].switches)/seconds)
		n.cpu = append(n.cpu, 100*(after.cpu-before[i].cpu).Seconds()/seconds)
	}
	return n, nil
}

// Loops that people write. The hosts are their arguments.
const (
	sshLoop = `for h; do
	until ssh -i /run/key -p 12345 -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \
		-o LogLevel=ERROR -o ConnectTimeout=2 "$h" true; do
		echo "waiting for $h"; sleep 1
	done
done; exec stamp launched`
	tcpLoop = `for h; do
	until (exec 3<>"/dev/tcp/$h/12345") 2>/dev/null; do
		echo "waiting for $h"; sleep 1
	done
done; exec stamp launched`
)

// measureLoop runs the loop on the first host and an SSH server on each other one. A random one of these starts last.
func (c *cluster) measureLoop(ctx context.Context, script string, into *series) error {
	server := func(i int) (*lab.Container, error) {
		return c.start(i, nil, "/run/bin/inside", "sshd", "host-"+strconv.Itoa(i), "user")
	}
	last := 1 + rand.IntN(jobSize-1)
	for i := 1; i < jobSize; i++ {
		if i == last {
			continue
		}
		if _, err := server(i); err != nil {
			return err
		}
	}
	zero, err := c.start(0, nil, append([]string{"/bin/bash", "-c", script, "loop"}, c.addrs[1:jobSize]...)...)
	if err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if _, err := zero.WaitLine(waiting, "waiting for "+c.addrs[last]); err != nil {
		return err
	}
	settleDown(ctx)
	p, err := server(last)
	if err == nil {
		err = into.since(ctx, p, "start", zero, "launched")
	}
	return errors.Join(err, c.end(ctx, true))
}

func (c *cluster) report(rounds int) report {
	r := report{
		name:  "rendezvous",
		title: "The rendezvous",
		intro: []string{
			fmt.Sprintf("%d hosts in namespaces of one machine with %d CPUs, Linux %s, %s. All but one wait; then the "+
				"last one starts. The time is from its exec until rank 0 executes a stand-in for mpirun, a program "+
				"in C that prints the time (integration/bench/stamp). paiinit is compared with two scripts that try "+
				"each host in order, once per second, until it answers: one logs in with OpenSSH's client, the other "+
				"only connects to the port. Their servers are paiinit's SSH server alone, and the last host has a "+
				"random place in the list. %d rounds of paiinit, %d of the scripts. "+nineOfTen,
				jobSize, runtime.NumCPU(), release(), runtime.Version(), rounds, len(c.ssh)),
			fmt.Sprintf("The barrier's time is from the start of the last `paiinit barrier` to its return. The last "+
				"two rows are measured in each of the %d containers, on PID 1 and the agent, during %v of a running "+
				"job.",
				len(c.noise), noiseTime),
		},
		columns: []string{"paiinit", "ssh to each", "port of each"},
	}
	row := func(name, format string, of ...series) {
		cells := []string{name}
		for i := range r.columns {
			if i < len(of) {
				cells = append(cells, of[i].cell(format))
			} else {
				cells = append(cells, "-")
			}
		}
		r.rows = append(r.rows, cells)
	}
	row("last host to launch, ms", "%.1f", c.ours, c.ssh, c.tcp)
	row("the same with a secret of fewer than 32 bytes, ms", "%.1f", c.short)
	row("the same with --http, ms", "%.1f", c.http)
	row(fmt.Sprintf("the same, and %d probes a second to its ranks, ms", probeRate), "%.1f", c.probed)
	row("barrier, ms", "%.1f", c.barrier)
	row("voluntary context switches of a container, 1/s", "%.1f", c.noise)
	row("CPU of a container, %", "%.3f", c.cpu)
	return r
}
