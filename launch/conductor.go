package launch

import (
	"log/slog"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Conductor ends a job in which every rank runs the command: it feeds a [Verdict] with the events that reach rank 0,
// and sends the orders. Its caller gives it one event at a time, as long as Verdict.Running returns ranks.
type Conductor struct {
	Verdict Verdict
	Grace   time.Duration // between SIGTERM and SIGKILL
	Log     *slog.Logger
	// Order sends an order to the other ranks, Pass a signal to the command of rank 0.
	Order func(signal int, reason string)
	Pass  func(os.Signal)
	// First reports whether the signal that rank 0 got is its first.
	First func() bool

	// RestartGrace replaces Grace after a failure, if the job may start again; 0 = it may not.
	RestartGrace time.Duration
	// Kill receives when RestartGrace is over; the caller then calls KillAll.
	Kill <-chan time.Time

	// Overtime receives when it is too late for a rank to report the end of its command; the caller then calls GiveUp.
	Overtime <-chan time.Time
}

// overtimeAfter is how long after the grace rank 0 waits for a rank to report the end of its command.
const overtimeAfter = 3 * time.Second

// Signal takes a signal that asks rank 0 to end.
func (c *Conductor) Signal(s Stop) {
	sig := syscall.Signal(s.Signal)
	if sig == syscall.SIGKILL { // from a second SIGINT; the first one has requested the stop
		c.Order(s.Signal, "killing the job")
		c.Pass(sig)
		return
	}
	first := c.First()
	switch {
	case !c.Verdict.Ordered():
		c.send(c.Verdict.Stop(s, time.Now()), false)
	case !first: // a scheduler that ends the job signals every container, so the first signal repeats the order
		c.Pass(sig)
	}
}

// Stop takes another rank's request to end the job.
func (c *Conductor) Stop(s Stop) {
	c.Log.Warn("a rank wants the job to stop", "phase", "wait", "peer", s.Name, "reason", s.Reason)
	c.send(c.Verdict.Stop(s, time.Now()), false)
}

// Lost takes the loss of a rank.
func (c *Conductor) Lost(l Loss) {
	order, news := c.Verdict.Lost(l, time.Now())
	if news {
		c.Log.Error("a rank is lost", "phase", "wait", "peer", l.Name, "rank", l.Rank, "reason", l.Reason)
	}
	c.send(order, true)
}

// Ended takes the end of a command, and reports whether its failure ends the job: it may have failed because another
// container was killed, so the caller asks which ranks are gone.
func (c *Conductor) Ended(e End) (failed bool) {
	order := c.Verdict.Ended(e, time.Now())
	failed = e.Outcome.Status != 0
	c.send(order, failed)
	return order != nil && failed
}

// KillAll kills the commands of all ranks.
func (c *Conductor) KillAll() {
	c.Order(int(syscall.SIGKILL), "the time to end before a restart is over")
	c.Pass(syscall.SIGKILL)
}

// GiveUp ends the wait for the other ranks.
func (c *Conductor) GiveUp() {
	late := slices.Sorted(slices.Values(c.Verdict.Running()))
	c.Log.Error("ranks did not report the end of their command", "phase", "wait", "ranks", strings.Join(late, ","))
	for _, r := range c.Verdict.Ranks {
		c.Verdict.silent = with(c.Verdict.silent, r.Rank)
	}
}

// send sends an order, unless it is nil. failed says that the order follows a failure.
func (c *Conductor) send(order *Stop, failed bool) {
	if order == nil {
		return
	}
	grace := c.Grace
	if failed && c.RestartGrace > 0 {
		grace = min(grace, c.RestartGrace)
		c.Kill = time.After(grace)
	}
	c.Overtime = time.After(grace + overtimeAfter)
	reason, _, _ := strings.Cut(order.Reason, "\n")
	c.Log.Info("ending the command of every rank", "phase", "wait", "reason", reason)
	c.Order(order.Signal, order.Reason)
	c.Pass(EndSignal(order.Signal))
}

// EndSignal returns the signal that ends a command: n, or SIGTERM if the order has no signal.
func EndSignal(n int) syscall.Signal {
	if n <= 0 {
		return syscall.SIGTERM
	}
	return syscall.Signal(n)
}
