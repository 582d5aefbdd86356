package localapi

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/paiinit/paiinit/internal/unixsock"
)

// Job answers the questions. The server calls it from several goroutines at once. Every context ends when the process
// that asks has ended, and when the server ends; those of Wait and Barrier also at the timeout of the question.
type Job interface {
	Status(ctx context.Context) *Status
	// Timeline returns what happened to each rank.
	Timeline(ctx context.Context) *Timeline
	// Ready returns why the job is not ready, on one line; nil = it is.
	Ready(ctx context.Context) *Refusal
	// Wait returns once all ranks are present.
	Wait(ctx context.Context) *Refusal
	// Barrier returns once every rank has called it with the same name.
	Barrier(ctx context.Context, name string) *Refusal
	// Hosts lists the hosts with slots whose ranks are present.
	Hosts(ctx context.Context) ([]Host, *Refusal)
	// Hostfile lists all hosts with slots.
	Hostfile(ctx context.Context) ([]Host, *Refusal)
	// Names lists the names of every host, by rank, the best name first; none before all ranks are present. pid is the
	// process that asks, 0 if it is in another PID namespace.
	Names(pid int) ([][]string, *Refusal)
	// Drift returns what differs between the ranks.
	Drift() (*Drift, *Refusal)
	// Fill returns the arguments that give a launcher its hosts; ok is false for a launcher that needs none.
	Fill(ctx context.Context, launcher string, call FillCall) (add []string, ok bool)
}

// Server answers the questions of the processes in this container.
type Server struct {
	Job     Job
	Version string // of this program, for clients of another version
	Logger  *slog.Logger
}

// Serve answers until ctx ends. Then it closes the listener, ends the context of every question, and returns nil once
// the last answer was sent, about 1 s later at most if the Job returns at once.
func (s Server) Serve(ctx context.Context, ln *net.UnixListener) error {
	unanswered := func(err error) {
		if err != nil {
			s.Logger.Debug("cannot answer a question", "err", err)
		}
	}
	return unixsock.Server{
		Answer: func(ctx context.Context, conn *net.UnixConn, pid int) { unanswered(s.exchange(ctx, conn, pid)) },
		Refuse: func(_ *net.UnixConn, err error) { unanswered(err) },
		Retry: func(err error, pause time.Duration) {
			s.Logger.Warn("cannot accept a question, trying again", "err", err, "pause", pause)
		},
	}.Serve(ctx, ln)
}

func (s Server) exchange(ctx context.Context, conn net.Conn, pid int) error {
	q, err := readRequest(ctx, conn)
	if err != nil || q == nil {
		return err
	}
	server := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if q.Timeout > 0 {
		var end context.CancelFunc
		ctx, end = context.WithTimeout(ctx, q.Timeout)
		defer end()
	}
	var listening sync.WaitGroup
	defer listening.Wait()
	defer func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) }()
	listening.Go(func() {
		_, _ = conn.Read(make([]byte, 1)) // returns when the client closes
		cancel()
	})
	b, err := json.Marshal(s.answer(ctx, q, pid))
	if err != nil {
		return err
	}
	_ = conn.SetWriteDeadline(time.Now().Add(sendTimeout))
	stop := context.AfterFunc(server, func() { _ = conn.SetWriteDeadline(time.Now().Add(lastSend)) })
	defer stop()
	_, err = conn.Write(append(b, '\n'))
	return err
}

// readRequest reads the line of a client. It returns nil for a client that closes at once: such a client only checks
// whether a paiinit is running.
func readRequest(ctx context.Context, conn net.Conn) (*request, error) {
	_ = conn.SetReadDeadline(time.Now().Add(requestTimeout))
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		_ = conn.SetReadDeadline(time.Now().Add(lastRequest))
	})
	defer func() {
		if !stop() {
			<-ended
		}
		_ = conn.SetReadDeadline(time.Time{})
	}()
	line, err := bufio.NewReader(io.LimitReader(conn, maxRequest)).ReadBytes('\n')
	if errors.Is(err, io.EOF) && len(line) == 0 {
		return nil, nil
	}
	q := new(request)
	if err == nil {
		err = json.Unmarshal(line, q)
	}
	if err != nil {
		return nil, fmt.Errorf("reading a question: %w", err)
	}
	return q, nil
}

func (s Server) answer(ctx context.Context, q *request, pid int) answer {
	var a answer
	var refusal *Refusal
	switch q.Ask {
	case askStatus:
		a.Status = s.Job.Status(ctx)
	case askTimeline:
		a.Timeline = s.Job.Timeline(ctx)
	case askLive:
	case askReady:
		refusal = s.Job.Ready(ctx)
	case askWait:
		refusal = s.Job.Wait(ctx)
	case askBarrier:
		refusal = s.Job.Barrier(ctx, q.Name)
	case askHosts:
		a.Hosts, refusal = s.Job.Hosts(ctx)
	case askHostfile:
		a.Hosts, refusal = s.Job.Hostfile(ctx)
	case askDrift:
		a.Drift, refusal = s.Job.Drift()
	case askNames:
		a.Names, refusal = s.Job.Names(pid)
	default:
		if q.Fill != nil {
			if add, ok := s.Job.Fill(ctx, q.Ask, *q.Fill); ok {
				return answer{Add: add}
			}
		}
		text := fmt.Sprintf("the running paiinit, %s, does not know the question %q", s.Version, q.Ask)
		refusal = &Refusal{64, text} // EX_USAGE in sysexits.h
	}
	if refusal != nil {
		return answer{Exit: refusal.Exit, Error: refusal.Text}
	}
	return a
}
