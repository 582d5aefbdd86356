package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/hostfile"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/rdma"
	"github.com/paiinit/paiinit/rendezvous"
)

// question is what one of the commands that ask sends to the paiinit of its container: one line of JSON on status.sock, which
// is answered by one line with a reply. A question whose sender is gone is dropped.
type question struct {
	Ask     string        `json:"ask"`     // the command: status, wait, barrier, hosts, hostfile, or a launcher that gets its hosts
	Name    string        `json:"name"`    // of the barrier
	Timeout time.Duration `json:"timeout"` // 0 = no limit

	Fill *fillCall `json:"horovodrun,omitempty"`
}

type reply struct {
	Exit   int             `json:"exit"` // status for the asker, with Error when it is not 0
	Error  string          `json:"error"`
	Status *jobStatus      `json:"status,omitempty"`
	Hosts  []hostfile.Host `json:"hosts,omitempty"`
	Add    []string        `json:"add,omitempty"` // arguments for a launcher
}

// jobStatus is what `paiinit status --json` prints and status.json holds. Fields are added, never changed.
type jobStatus struct {
	Phase   rendezvous.Phase   `json:"phase"`
	Rank    int                `json:"rank"` // of this container; -1 = to be agreed
	Size    int                `json:"size"` // -1 = unknown
	Epoch   uint64             `json:"epoch"`
	Hash    string             `json:"hash"`
	Ranks   []rankStatus       `json:"ranks"`
	Timings map[string]float64 `json:"timings"` // seconds from the start of this container to the end of each of its phases
}

type rankStatus struct {
	Rank   int                 `json:"rank"`
	Alias  string              `json:"alias"`
	Host   string              `json:"host"`
	Port   int                 `json:"port"`
	State  rendezvous.Standing `json:"state"`
	Reason string              `json:"reason"`
	Since  time.Time           `json:"since"`
	Slots  int                 `json:"slots"`
	GPUs   int                 `json:"gpus"`
	Fabric string              `json:"fabric"`
}

// maxQuestion is more than any question has, in bytes: that of horovodrun holds a list of hosts.
const maxQuestion = 256 << 10

// answerQuestions serves the commands that ask, until ctx ends.
func (c *container) answerQuestions(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = c.state.questions.Close() })
	defer stop()
	var asked sync.WaitGroup
	defer asked.Wait()
	for {
		conn, err := c.state.questions.AcceptUnix()
		switch {
		case err == nil:
			asked.Go(func() {
				defer func() { _ = conn.Close() }()
				if err := c.answerOne(ctx, conn); err != nil {
					c.log.Debug("a question was not answered", "err", err)
				}
			})
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.ENOBUFS):
			select { // the kernel keeps the asker waiting
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		default:
			return fmt.Errorf("accepting on %v: %w", c.state.questions.Addr(), err)
		}
	}
}

func (c *container) answerOne(ctx context.Context, conn *net.UnixConn) error {
	if err := trusted(conn); err != nil {
		return err
	}
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second)) // an asker sends its question at once
	line, err := bufio.NewReader(io.LimitReader(conn, maxQuestion)).ReadBytes('\n')
	if errors.Is(err, io.EOF) && len(line) == 0 {
		return nil // only wanted to know whether a paiinit runs
	}
	if err != nil {
		return fmt.Errorf("reading a question: %w", err)
	}
	var q question
	if err := json.Unmarshal(line, &q); err != nil {
		return fmt.Errorf("reading a question: %w", err)
	}
	_ = conn.SetReadDeadline(time.Time{})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if q.Timeout > 0 {
		var end context.CancelFunc
		ctx, end = context.WithTimeout(ctx, q.Timeout)
		defer end()
	}
	var listening sync.WaitGroup
	defer listening.Wait()
	defer func() { _ = conn.CloseRead() }()
	listening.Go(func() {
		_, _ = conn.Read(make([]byte, 1)) // only its end is awaited
		cancel()
	})
	answer, err := json.Marshal(c.answer(ctx, q))
	if err != nil {
		return err
	}
	_ = conn.SetWriteDeadline(time.Now().Add(10 * time.Second))
	_, err = conn.Write(append(answer, '\n'))
	return err
}

// trusted checks who is at the other end of a socket: only this user and root may ask, and be asked.
func trusted(conn *net.UnixConn) error {
	cred, err := peerOf(conn)
	if err != nil {
		return fmt.Errorf("finding out who is at the other end: %w", err)
	}
	if own := os.Getuid(); cred.Uid != 0 && int(cred.Uid) != own {
		return fmt.Errorf("user %d is at the other end, neither user %d nor root", cred.Uid, own)
	}
	return nil
}

// peerOf returns the user and the process at the other end of a socket (unix(7), SO_PEERCRED).
func peerOf(conn *net.UnixConn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	return cred, errors.Join(err, credErr)
}

func (c *container) answer(ctx context.Context, q question) reply {
	switch q.Ask {
	case "status":
		return reply{Status: c.status(c.node.Status(ctx))}
	case "wait":
		return c.awaitAll(ctx)
	case "barrier":
		return c.awaitBarrier(ctx, q.Name)
	case "hosts":
		return c.hosts(c.node.Status(ctx), func(r rendezvous.RankStatus) bool { return r.Standing == rendezvous.Present })
	case "hostfile":
		return c.hosts(c.node.View(), func(rendezvous.RankStatus) bool { return true })
	}
	if how := launch.FillNamed(q.Ask); how != nil && q.Fill != nil {
		return c.answerFill(ctx, q.Ask, how, *q.Fill)
	}
	return reply{Exit: statusUsage, Error: fmt.Sprintf("this paiinit, %s, does not know the question %q", version, q.Ask)}
}

// status is what a person or a program wants to know of where the rendezvous stands.
func (c *container) status(s rendezvous.Status) *jobStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := &jobStatus{Phase: s.Phase, Rank: c.job.Rank, Size: c.job.Size, Epoch: s.Epoch, Hash: s.Hash, Ranks: []rankStatus{}, Timings: map[string]float64{}}
	if c.job.First {
		out.Rank = 0
	}
	if len(c.roster.Members) > 0 {
		out.Rank, out.Size = c.self(c.roster).Rank, len(c.roster.Members)
	}
	for _, r := range s.Ranks {
		row := rankStatus{
			Rank: r.Rank, Alias: r.Alias, Host: r.Host, Port: r.Port, State: r.Standing, Reason: r.Reason, Since: r.Since, Slots: r.Slots, GPUs: r.GPUs,
		}
		if f, err := rdma.DecodeSummary(r.Fabric); err == nil && len(r.Fabric) > 0 {
			row.Fabric = f.String()
		}
		out.Ranks = append(out.Ranks, row)
	}
	for phase, d := range c.timings {
		out.Timings[phase] = d.Seconds()
	}
	return out
}

// missing says who is not there, in the words of the log.
func (s *jobStatus) missing() *rendezvous.MissingError {
	e := &rendezvous.MissingError{Size: s.Size}
	for _, r := range s.Ranks {
		if (r.State == rendezvous.Present || r.State == rendezvous.Heard) && r.Reason == "" {
			e.Present++
		} else {
			e.Missing = append(e.Missing, rendezvous.Missing{Rank: r.Rank, Name: r.Alias, Reason: r.Reason})
		}
	}
	return e
}

func (c *container) awaitAll(ctx context.Context) reply {
	_, err := c.node.Gather(ctx)
	var ended *rendezvous.EndedError
	switch {
	case err == nil:
		return reply{}
	case errors.As(err, &ended):
		return reply{Exit: failing(ended.Outcome.Status), Error: err.Error()}
	case errors.Is(err, context.DeadlineExceeded):
		return reply{Exit: statusRetry, Error: c.status(c.node.Status(context.WithoutCancel(ctx))).missing().Error()}
	case ctx.Err() != nil:
		return c.overReply("before all ranks were present")
	}
	return reply{Exit: statusOf(err), Error: err.Error()}
}

func (c *container) awaitBarrier(ctx context.Context, name string) reply {
	err := c.node.Barrier(ctx, name)
	var absent *rendezvous.BarrierError
	switch {
	case err == nil:
		return reply{}
	case errors.Is(err, rendezvous.ErrOver), errors.Is(ctx.Err(), context.Canceled):
		return c.overReply(fmt.Sprintf("before every rank had called the barrier %q", name))
	case errors.As(err, &absent):
		return reply{Exit: statusRetry, Error: err.Error()}
	}
	return reply{Exit: statusUsage, Error: err.Error()}
}

// overReply is for who waited for something when the job ended.
func (c *container) overReply(when string) reply {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	o, err := c.node.Wait(now)
	switch {
	case errors.Is(err, context.Canceled):
		return reply{Exit: statusRetry, Error: "the paiinit of this container is ending " + when}
	case err != nil:
		return reply{Exit: statusOf(err), Error: fmt.Sprintf("the job ended %s: %v", when, err)}
	}
	return reply{Exit: failing(o.Status), Error: fmt.Sprintf("the job ended with status %d %s: %s", o.Status, when, o.Reason)}
}

// failing is the status of who waited in vain: the job's, unless that is success.
func failing(status int) int {
	if status == 0 {
		return statusRetry
	}
	return status
}

// hosts lists the hosts with slots by the names that launchers use. These are settled by the commit.
func (c *container) hosts(s rendezvous.Status, wanted func(rendezvous.RankStatus) bool) reply {
	members, names := c.named()
	if len(members) == 0 {
		return reply{Exit: statusRetry, Error: "the list of hosts is settled when all ranks are present: " + c.status(s).missing().Error()}
	}
	out := reply{Hosts: []hostfile.Host{}}
	for _, r := range s.Ranks {
		if r.Rank >= 0 && r.Rank < len(members) && members[r.Rank].Slots > 0 && wanted(r) {
			out.Hosts = append(out.Hosts, hostfile.Host{Name: names[r.Rank], Slots: members[r.Rank].Slots})
		}
	}
	return out
}

// mark notes that a phase of the story has come to its end.
func (c *container) mark(phase string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timings == nil {
		c.timings = make(map[string]time.Duration)
	}
	c.timings[phase] = time.Since(c.begin)
}

// launchFirst is how long what is in no hurry waits after all ranks have come.
const launchFirst = time.Second

// statusInterval is how old status.json may get while ranks are awaited.
const statusInterval = 10 * time.Second

// keepStatusFile writes status.json for who cannot ask, or comes too late: when the wait has lasted a moment, from time to time during it, when
// all ranks are present, and at the end.
func (c *container) keepStatusFile(ctx context.Context) {
	write := func() {
		var b bytes.Buffer
		err := printJSON(&b, c.status(c.node.View()))
		if err == nil {
			err = c.state.writeFile("status.json", b.Bytes())
		}
		if err != nil {
			c.log.Debug("status.json cannot be written", "err", err)
		}
	}
	interval := lastFirst
	for waiting := true; waiting; interval = statusInterval {
		soon, cancel := context.WithTimeout(ctx, interval)
		_, err := c.node.Gather(soon)
		waiting = errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil
		cancel()
		if waiting {
			write()
		}
	}
	soon, cancel := context.WithTimeout(ctx, launchFirst)
	_, err := c.node.Wait(soon)
	cancel()
	if err != nil {
		c.haveSSHFiles()
		write()
		_, _ = c.node.Wait(ctx) // how it ended is not asked here
	}
	write()
}
