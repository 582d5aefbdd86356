package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"regexp"
	"slices"
	"sort"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/envspec"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/rendezvous"
)

// Who runs the command (--exec).
const (
	execRank0 = "rank0"
	execAll   = "all"
)

// everywhere is the launch where every rank runs the command: each tells rank 0 how its own ended, and rank 0 decides.
func (c *container) everywhere(ctx context.Context, r rendezvous.Roster) (int, error) {
	t := c.startTask(ctx, r)
	if t.rank != 0 {
		return c.obey(ctx, t)
	}
	return c.finish(ctx, c.conduct(ctx, t, r))
}

// task is the command of this rank while it runs.
type task struct {
	rank int
	pass func(os.Signal)
	end  <-chan rendezvous.End // one, how it ended
}

func (c *container) startTask(ctx context.Context, r rendezvous.Roster) task {
	self := c.self(r)
	end := make(chan rendezvous.End, 1)
	t := task{rank: self.Rank, pass: func(os.Signal) {}, end: end}
	failed := func(err error) {
		o := rendezvous.Outcome{Status: statusOf(err), Reason: fmt.Sprintf("rank %d's command: %v", t.rank, err)}
		end <- rendezvous.End{Rank: t.rank, Name: self.Alias, Outcome: o, At: time.Now()}
	}
	environ, err := c.launcherEnviron(r, launch.TaskEnvironment(c.tasks(r)))
	if err != nil {
		failed(err)
		return t
	}
	if c.job.ServerPort {
		environ = c.job.WithServerPorts(environ, taskPorts(r.Members))
	}
	cmd, pass, err := c.jobCommand(environ, len(r.Members))
	if err != nil {
		failed(err)
		return t
	}
	t.pass = pass
	cmd.Started = c.leaveDirectory
	c.task.release()
	c.log.Info("launching", "phase", "launch", "command", strings.Join(cmd.Args, " "), "rank", t.rank, "size", len(r.Members), "elapsed", c.elapsed())
	go func() {
		c.mark("launch")
		result, err := c.runCommand(ctx, cmd)
		status := commandStatus(launch.Spawns(cmd.Args), result)
		c.log.Info("the command has ended", "phase", "wait",
			"command", cmd.Args[0], "status", status, "elapsed", c.elapsed())
		if err != nil {
			failed(err)
			return
		}
		cause := firstCause(t.rank, cmd.Args[0], result, oomKills(os.DirFS("/"))-c.oomKills)
		end <- rendezvous.End{
			Rank: t.rank, Name: self.Alias, At: result.At, Stopped: result.Forwarded != 0,
			Outcome: rendezvous.Outcome{Status: status, Reason: cause},
		}
	}()
	return t
}

// warnServerPort says that a server of the command cannot have the port that its scheduler gave it.
func (c *container) warnServerPort() {
	if c.job.ServerPort && c.exec == execAll && !c.isAlone() {
		c.log.Warn("paiinit listens on the http port of this task, which the command cannot bind", "phase", "identify",
			"port", c.job.Port, "reason", "OpenPAI before 0.11 tells the other tasks no other port",
			"hint", "TF_CONFIG and the PAI_..._HOST_LIST variables of the command name another port of each task; "+
				"arguments with these variables belong into sh -c '...', which paiinit starts")
	}
}

// taskPorts finds the port that a member holds for its command, 0 where it holds none.
func taskPorts(members []rendezvous.Member) func(role string, index int) int {
	return func(role string, index int) int {
		for i := range members {
			if m := &members[i]; m.Role == role && m.Index == index {
				return m.Task
			}
		}
		return 0
	}
}

// tasks is what the frameworks without a launcher need to know of the ranks.
func (c *container) tasks(r rendezvous.Roster) launch.Tasks {
	t := launch.Tasks{Job: c.job.ID, Self: c.self(r).Rank, Spawns: launch.Spawns(c.settings.command)}
	for _, m := range r.Members {
		t.Ranks = append(t.Ranks, launch.Task{Role: m.Role, Index: m.Index, Addr: m.Addr.Addr().String(), Port: m.Task, Slots: m.Slots})
	}
	return t
}

// obey is the part of every rank but 0: its command ends by itself, or when rank 0 says so.
func (c *container) obey(ctx context.Context, t task) (int, error) {
	c.signals.to(func(sig os.Signal) {
		if n := terminating(sig); n > 0 {
			err := &stoppedError{signal: n, name: c.job.Alias}
			if sig != syscall.SIGKILL && c.node.RequestStop(n, err.Error()) && c.signals.first() {
				return // it comes back as rank 0's order, to everybody
			}
		}
		t.pass(sig)
	})
	defer c.signals.to(nil)
	type waited struct {
		outcome rendezvous.Outcome
		err     error
	}
	over := make(chan waited, 1)
	go func() {
		o, err := c.node.Wait(ctx)
		over <- waited{o, err}
	}()
	var w waited
	for running, waiting := true, true; running || waiting; {
		select {
		case s := <-c.node.Orders():
			c.log.Info("rank 0 ends the job", "phase", "wait", "reason", firstLine(s.Reason))
			t.pass(stopSignal(s.Signal))
		case e := <-t.end:
			running = false
			c.node.Report(e)
		case w = <-over:
			waiting = false
			t.pass(stopSignal(0)) // without an order: rank 0 is gone
		}
	}
	if w.err != nil {
		return statusOf(w.err), w.err
	}
	c.sayEnd(w.outcome)
	return w.outcome.Status, nil
}

// commandStatus is the exit status that stands for the end of a command. Launchers answer SIGTERM with 0 (MPICH), 1
// (Open MPI, torchrun, horovodrun) or the status of a rank: the job was stopped. Any other command may have saved its
// work and ended with 0.
func commandStatus(launcher bool, r launch.Result) int {
	if launcher && r.Forwarded != 0 {
		return 128 + int(r.Forwarded)
	}
	return r.Status()
}

// conduct is rank 0's part: the first failure, loss or wish to stop ends all commands, and is the outcome of the job.
// When the commands of all ranks that --until waits for have ended with 0, rank 0 stops the commands that still run.
func (c *container) conduct(ctx context.Context, t task, r rendezvous.Roster) rendezvous.Outcome {
	asked := make(chan os.Signal, 16)
	c.signals.to(func(sig os.Signal) {
		if terminating(sig) == 0 {
			t.pass(sig)
			return
		}
		select {
		case asked <- sig:
		default: // sixteen that nobody has looked at say enough
		}
	})
	defer c.signals.to(nil)
	var asking sync.WaitGroup
	defer asking.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	running := make(map[int]string, len(r.Members))
	for _, m := range r.Members {
		running[m.Rank] = m.Alias
	}
	needed := make(map[int]bool)
	for _, m := range c.neededRanks(r.Members) {
		needed[m.Rank] = true
	}
	var (
		j        = judgement{size: len(r.Members), needed: c.neededRanks(r.Members)}
		absent   = make(chan []rendezvous.Loss, 1)
		overtime <-chan time.Time
	)
	order := func(sig int, reason string) {
		if overtime == nil {
			overtime = time.After(c.grace + overtimeAfter)
			j.ordered = time.Now()
			c.log.Info("ending the command of every rank", "phase", "wait", "reason", firstLine(reason))
			c.node.Order(sig, reason)
			t.pass(stopSignal(sig))
		}
	}
	lost := func(l rendezvous.Loss) {
		if _, ok := running[l.Rank]; ok {
			c.log.Error("a rank is lost", "phase", "wait", "peer", l.Name, "rank", l.Rank, "reason", l.Reason)
			delete(running, l.Rank)
			j.lost = append(j.lost, l)
			order(0, lossText(l))
		}
	}
	ended := func(e rendezvous.End) {
		delete(running, e.Rank)
		j.ends = append(j.ends, e)
		if e.Outcome.Status != 0 && overtime == nil {
			order(0, e.Outcome.Reason)
			// A container that was killed takes its command, and so the others', with it.
			asking.Go(func() { absent <- c.node.Absent(ctx, settle, absence) })
		}
		if e.Outcome.Status == 0 {
			delete(needed, e.Rank)
		}
		if len(needed) == 0 && len(running) > 0 {
			order(0, j.success())
		}
	}
	for len(running) > 0 {
		select {
		case sig := <-asked:
			if sig == syscall.SIGKILL { // a person is in a hurry, and has been heard already
				c.node.Order(int(syscall.SIGKILL), "the job is ended at once")
				t.pass(sig)
				continue
			}
			first := c.signals.first()
			if overtime != nil {
				if !first { // who ends a whole job tells every container: the first one here says no more than the order
					t.pass(sig)
				}
				continue
			}
			n := terminating(sig)
			j.stop = &rendezvous.Stop{Name: c.job.Alias, Signal: n, Reason: (&stoppedError{n, c.job.Alias}).Error()}
			order(n, j.stop.Reason)
		case s := <-c.node.Stops():
			c.log.Warn("a rank wants the job to stop", "phase", "wait", "peer", s.Name, "reason", s.Reason)
			if overtime == nil {
				j.stop = &s
			}
			order(s.Signal, s.Reason)
		case e := <-t.end:
			ended(e)
		case e := <-c.node.Ends():
			ended(e)
		case l := <-c.node.Losses():
			lost(l)
		case all := <-absent:
			for _, l := range all {
				lost(l)
			}
		case <-overtime:
			c.log.Error("ranks do not say that their command has ended", "phase", "wait", "ranks", strings.Join(slices.Sorted(maps.Values(running)), ","))
			clear(running)
		}
	}
	ctx, cancelAlign := context.WithTimeout(ctx, alignTime)
	defer cancelAlign()
	c.node.Align(ctx, j.unclear()...)
	return j.outcome()
}

const (
	// alignTime is for how long the ranks whose commands have failed may take to tell their clocks.
	alignTime = time.Second
	// together is how long after the first failure another one may come from the same cause, and is named with it.
	together = 250 * time.Millisecond
	// mostNamed is how many of these are named.
	mostNamed = 8
)

// overtimeAfter is how long after the grace a rank may still take to say that its command has ended.
const overtimeAfter = 3 * time.Second

// judgement is what rank 0 has heard of all commands.
type judgement struct {
	size    int
	needed  []rendezvous.Member // their commands ended with 0: so did the job
	ends    []rendezvous.End
	lost    []rendezvous.Loss
	stop    *rendezvous.Stop // the wish of a rank, if it was the reason to end
	ordered time.Time        // when all commands were told to end; zero: they were not
}

// own says that a command ended before, or without, being told to. It may have ended just before the signal reached it.
func (j judgement) own(e rendezvous.End) bool {
	return !e.Stopped || j.ordered.IsZero() || e.At.Add(e.Error).Before(j.ordered)
}

// succeeded says whether every needed command has ended with 0 by itself, and when the last of them did.
func (j judgement) succeeded() (last rendezvous.End, ok bool) {
	needed := make(map[int]bool)
	for _, m := range j.needed {
		needed[m.Rank] = true
	}
	for _, e := range j.ends {
		if !needed[e.Rank] || e.Outcome.Status != 0 || !j.own(e) {
			continue
		}
		delete(needed, e.Rank)
		if e.At.After(last.At) {
			last = e
		}
	}
	return last, len(needed) == 0
}

// success is what the job's success consists of.
func (j judgement) success() string {
	switch {
	case len(j.needed) == j.size:
		return fmt.Sprintf("the commands of all %d ranks ended with status 0", j.size)
	case len(j.needed) == 1:
		return fmt.Sprintf("the command of rank %d (%s) ended with status 0", j.needed[0].Rank, j.needed[0].Alias)
	}
	roles := rolesOf(j.needed)
	slices.Sort(roles)
	return fmt.Sprintf("the commands of all ranks of %s ended with status 0", strings.Join(slices.Compact(roles), ", "))
}

// unclear are the ends whose order decides, so that the clocks of their ranks have to be compared.
func (j judgement) unclear() []*rendezvous.End {
	_, well := j.succeeded()
	var ends []*rendezvous.End
	failed := false
	for i := range j.ends {
		bad := j.ends[i].Outcome.Status != 0
		if bad || well {
			ends = append(ends, &j.ends[i])
		}
		failed = failed || bad
	}
	if j.stop != nil || !failed || len(ends) < 2 {
		return nil
	}
	return ends
}

// outcome names the first cause: a wish to stop, if it came first, a lost rank, or the command that failed first by
// aligned clocks. Commands that only followed the order to end do not count, nor do servers that fail once the needed
// commands have ended with 0.
func (j judgement) outcome() rendezvous.Outcome {
	last, well := j.succeeded()
	failed := j.failed()
	before := func(e rendezvous.End) bool { return e.At.Add(e.Error).Before(last.At.Add(-last.Error)) }
	switch {
	case j.stop != nil:
		return j.stopped()
	case well && !slices.ContainsFunc(failed, before):
		return rendezvous.Outcome{Reason: j.success() + j.rest()}
	case len(j.lost) > 0:
		o := rendezvous.Outcome{Status: statusRetry, Reason: lossText(j.lost[0])}
		if len(failed) > 0 {
			o.Reason += "; " + failed[0].Outcome.Reason
		}
		return o
	case len(failed) > 0:
		o := failed[0].Outcome
		o.Reason += alsoFailed(failed)
		return o
	}
	// Some ranks never told how their commands ended, although they were told to end them.
	return rendezvous.Outcome{Status: statusRetry, Reason: "not every rank told how its command ended"}
}

// stopped is the outcome of a job that a rank wanted to end.
func (j judgement) stopped() rendezvous.Outcome {
	o := rendezvous.Outcome{Status: 128 + int(unix.SIGTERM), Reason: j.stop.Reason}
	if j.stop.Signal > 0 {
		o.Status = 128 + j.stop.Signal
	}
	bad := func(e rendezvous.End) bool { return e.Outcome.Status != 0 }
	if len(j.ends) == j.size && !slices.ContainsFunc(j.ends, bad) {
		o.Status = 0 // all commands may have saved their work
		o.Reason += "; the commands of all ranks ended with status 0"
		return o
	}
	told := slices.DeleteFunc(slices.Clone(j.ends), func(e rendezvous.End) bool { return !e.Stopped || !bad(e) })
	if len(told) > 0 { // commands may answer a signal with a status of their own
		first := slices.MinFunc(told, byRank).Outcome
		o.Status = first.Status
		o.Reason += "; " + first.Reason
	}
	return o
}

// failed are the commands that failed by themselves: the most likely cause first, the others in the order in which
// they ended.
func (j judgement) failed() []rendezvous.End {
	var ends []rendezvous.End
	for _, e := range j.ends {
		if e.Outcome.Status != 0 && j.own(e) {
			ends = append(ends, e)
		}
	}
	sort.Slice(ends, func(a, b int) bool {
		return cmp.Or(ends[a].At.Compare(ends[b].At), byRank(ends[a], ends[b])) < 0
	})
	if len(ends) < 2 {
		return ends
	}
	upper := func(e rendezvous.End) time.Time { return e.At.Add(e.Error) }
	sure := slices.MinFunc(ends, func(a, b rendezvous.End) int { return upper(a).Compare(upper(b)) })
	noticed := func(e rendezvous.End, within time.Duration) bool {
		return !e.At.Add(-e.Error).After(upper(sure).Add(within))
	}
	// Who complains about a connection lost it to a command that had ended before, however late that was noticed.
	accused := lostConnection().MatchString(sure.Outcome.Reason)
	first, least := 0, 0
	for i, e := range ends {
		n := following(e, ends)
		possible := noticed(e, notice) || accused && n < complaint && noticed(e, together)
		if possible && (i == 0 || n < least) {
			first, least = i, n
		}
	}
	e := ends[first]
	return slices.Insert(slices.Delete(ends, first, first+1), 0, e)
}

// notice is how long a busy machine may take until paiinit notices the end of a command: ends closer together than
// this cannot be ordered by time alone. When a process exits, its peers lose their connections and may end before
// it has been reaped.
const notice = 25 * time.Millisecond

// following is how much the end of a command looks like the consequence of another rank's: most of all where a signal
// ended it that libraries send when a peer is gone, where it complains about a connection, or where it ended as
// several others did.
func following(e rendezvous.End, ends []rendezvous.End) (signs int) {
	alike := func(o rendezvous.End) bool { return o.Rank != e.Rank && o.Outcome.Status == e.Outcome.Status }
	if slices.ContainsFunc(ends, alike) {
		signs++
	}
	if follows(e.Outcome.Status) || lostConnection().MatchString(e.Outcome.Reason) {
		signs += complaint
	}
	return signs
}

// complaint is what a sign of another command's end counts: more than any other.
const complaint = 2

// lostConnection is compiled for a job that fails, not at the start of every process.
var lostConnection = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)connection (was )?(reset|closed|aborted|lost)|broken ?pipe|` +
		`(reset|closed) by (the )?(remote )?peer|remote (process|host) (has )?(exited|closed)|socket (was )?closed`)
})

// follows says that a command was ended by a signal that libraries and launchers send when another rank has failed.
func follows(status int) bool {
	return slices.Contains([]int{128 + int(unix.SIGTERM), 128 + int(unix.SIGABRT), 128 + int(unix.SIGPIPE)}, status)
}

func byRank(a, b rendezvous.End) int { return a.Rank - b.Rank }

// alsoFailed names the ranks that failed shortly after the first: most often the first failure caused theirs. Whether
// it did, time alone does not tell where paiinit noticed them within the same moment.
func alsoFailed(failed []rendezvous.End) string {
	var also []string
	more := 0
	for _, e := range failed[1:] {
		d := e.At.Sub(failed[0].At)
		switch {
		case d > together:
		case len(also) == mostNamed:
			more++
		default:
			after := max(d, 0).Round(time.Millisecond)
			also = append(also, fmt.Sprintf("rank %d (%s) with %d after %v", e.Rank, e.Name, e.Outcome.Status, after))
		}
	}
	if len(also) == 0 {
		return ""
	}
	text := "\nother commands failed at about the same time: " + strings.Join(also, ", ")
	if more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// rest are the roles that were told to end when the needed commands had ended.
func (j judgement) rest() string {
	if j.ordered.IsZero() {
		return ""
	}
	return "; the others were told to end then"
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// withdraw is the way out of a rank other than 0: rank 0 ends the job for all when it hears of it. Where the
// environment of this rank contradicts itself, that of rank 0 may, too, and rank 0 be gone: withdraw waits 5 s at most.
func (c *container) withdraw(ctx context.Context, err error) (int, error) {
	if lerr := c.listen(ctx); lerr != nil {
		return 0, errors.Join(err, lerr)
	}
	ctx, end := c.untilStopped(ctx)
	defer end()
	c.log.Error(err.Error(), "phase", "identify", "status", statusOf(err), "hint", hint(err, c.settings.command))
	if contradiction := (*envspec.VarError)(nil); errors.As(err, &contradiction) {
		leaving, cancel := context.WithTimeout(ctx, dismissal)
		c.node.Withdraw(leaving, *c.unfit) // rank 0, or ranks that will tell it
		cancel()
	} else {
		_, gerr := c.node.Gather(ctx)
		if ended := (*rendezvous.EndedError)(nil); !errors.As(gerr, &ended) {
			c.log.Warn("rank 0 was not told", "phase", "exit", "err", gerr)
		}
	}
	// Where ranks are agreed, this one may be the first, and the one to tell.
	if ferr := c.node.Finish(context.WithoutCancel(ctx), *c.unfit, 0); ferr != nil {
		c.log.Warn("not every rank was told", "phase", "exit", "err", ferr)
	}
	return c.unfit.Status, err
}

// checkExec refuses ranks that were told different things about who runs the command.
func checkExec(r rendezvous.Roster) *rendezvous.Outcome {
	for _, m := range r.Members {
		if first := r.Members[0]; m.Exec != first.Exec {
			return &rendezvous.Outcome{Status: statusConfig, Reason: fmt.Sprintf(
				"the ranks were told different things about who runs the command: %s has --exec %s, %s has --exec %s", first.Alias, first.Exec, m.Alias, m.Exec)}
		}
	}
	return nil
}

// heldPort is a TCP port that nobody else can bind while it is held. Nobody can connect to it either. A nil *heldPort holds none.
type heldPort struct {
	fd, number int
}

// holdPort takes a port below the ones that Linux gives out by itself, where a connection could take it between release
// and use (ip_local_port_range, Documentation/networking/ip-sysctl.rst of the kernel).
func holdPort(random func(n int) int, log *slog.Logger) *heldPort {
	const low, count, tries = 20000, 10000, 64
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	wildcard := func(port int) unix.Sockaddr { return &unix.SockaddrInet6{Port: port} }
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0)
	} else { // a kernel without IPv6
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		wildcard = func(port int) unix.Sockaddr { return &unix.SockaddrInet4{Port: port} }
	}
	for range tries {
		port := low + random(count)
		if err == nil {
			err = unix.Bind(fd, wildcard(port))
		}
		if err == nil {
			return &heldPort{fd, port}
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			break
		}
		err = nil
	}
	log.Warn("no port could be kept free for the job", "phase", "listen", "err", err)
	if fd >= 0 {
		_ = unix.Close(fd)
	}
	return nil
}

func (p *heldPort) port() int {
	if p == nil {
		return 0
	}
	return p.number
}

// release gives the port to whoever binds it next; once.
func (p *heldPort) release() {
	if p != nil && p.fd >= 0 {
		_ = unix.Close(p.fd)
		p.fd = -1
	}
}
