package localapi

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/paiinit/paiinit/internal/unixsock"
)

// Client asks the paiinit of this container. Its methods return a *Refusal if paiinit has answered with one, and a
// *DialError, *TimeoutError or *ClosedError if paiinit has not answered.
type Client struct {
	Socket string // path of status.sock
}

// DialError says that no process serves the socket, or, where Err is an os.ErrPermission, that this user may not ask.
type DialError struct {
	Socket string
	Err    error
}

func (e *DialError) Error() string { return fmt.Sprintf("no answer on %s: %v", e.Socket, e.Err) }
func (e *DialError) Unwrap() error { return e.Err }

// TimeoutError says that the server has not answered in time.
type TimeoutError struct{}

func (*TimeoutError) Error() string {
	return "paiinit is running in this container but does not answer"
}

// ClosedError says that the server has closed the connection without an answer.
type ClosedError struct{ Err error }

func (e *ClosedError) Error() string {
	return fmt.Sprintf("paiinit ended before it answered: %v", e.Err)
}
func (e *ClosedError) Unwrap() error { return e.Err }

// Status asks for the state of the job.
func (c Client) Status(ctx context.Context) (*Status, error) {
	a, err := c.ask(ctx, request{Ask: askStatus})
	if err == nil && a.Status == nil {
		err = errors.New("reading the answer of paiinit: the status is missing")
	}
	return a.Status, err
}

// Ready returns a *Refusal that says why the job is not ready; nil = it is.
func (c Client) Ready(ctx context.Context) error {
	_, err := c.ask(ctx, request{Ask: askReady})
	return err
}

// Live returns nil if paiinit answers.
func (c Client) Live(ctx context.Context) error {
	_, err := c.ask(ctx, request{Ask: askLive})
	return err
}

// Wait returns once all ranks are present, or a *Refusal after timeout (0 = no limit).
func (c Client) Wait(ctx context.Context, timeout time.Duration) error {
	_, err := c.ask(ctx, request{Ask: askWait, Timeout: timeout})
	return err
}

// Barrier returns once every rank has called it with the same name, or a *Refusal after timeout (0 = no limit).
func (c Client) Barrier(ctx context.Context, name string, timeout time.Duration) error {
	_, err := c.ask(ctx, request{Ask: askBarrier, Name: name, Timeout: timeout})
	return err
}

// Hosts lists the hosts with slots whose ranks are present.
func (c Client) Hosts(ctx context.Context) ([]Host, error) {
	a, err := c.ask(ctx, request{Ask: askHosts})
	return a.Hosts, err
}

// Hostfile lists all hosts with slots.
func (c Client) Hostfile(ctx context.Context) ([]Host, error) {
	a, err := c.ask(ctx, request{Ask: askHostfile})
	return a.Hosts, err
}

// Names lists the names of every host, by rank, the best name first; none before all ranks are present.
func (c Client) Names(ctx context.Context) ([][]string, error) {
	a, err := c.ask(ctx, request{Ask: askNames})
	return a.Names, err
}

// Fill asks for the arguments that give a launcher its hosts.
func (c Client) Fill(ctx context.Context, launcher string, call FillCall) ([]string, error) {
	a, err := c.ask(ctx, request{Ask: launcher, Fill: &call})
	return a.Add, err
}

func (c Client) ask(ctx context.Context, q request) (answer, error) {
	conn, err := unixsock.Dial(ctx, c.Socket)
	switch {
	case err != nil && ctx.Err() != nil:
		return answer{}, ctx.Err()
	case err != nil:
		return answer{}, &DialError{c.Socket, err}
	}
	defer func() { _ = conn.Close() }()
	if _, err := unixsock.CheckServer(conn); err != nil {
		return answer{}, fmt.Errorf("asking on %s: %w", c.Socket, err)
	}
	return exchange(ctx, conn, q)
}

func exchange(ctx context.Context, conn net.Conn, q request) (answer, error) {
	b, err := json.Marshal(q)
	if err != nil {
		return answer{}, err
	}
	if q.Ask != askWait && q.Ask != askBarrier {
		_ = conn.SetDeadline(time.Now().Add(answerTimeout))
	} else if q.Timeout > 0 {
		_ = conn.SetDeadline(time.Now().Add(q.Timeout + answerTimeout))
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err = conn.Write(append(b, '\n')); err == nil {
		b, err = bufio.NewReader(io.LimitReader(conn, maxAnswer)).ReadBytes('\n')
	}
	switch {
	case err == nil:
		return readAnswer(b)
	case ctx.Err() != nil:
		return answer{}, ctx.Err()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return answer{}, &TimeoutError{}
	case errors.Is(err, io.EOF) && len(b) == maxAnswer:
		return answer{}, fmt.Errorf("reading the answer of paiinit: it has more than %d bytes", maxAnswer)
	}
	return answer{}, &ClosedError{err}
}

func readAnswer(line []byte) (answer, error) {
	var a answer
	if err := json.Unmarshal(line, &a); err != nil {
		return answer{}, fmt.Errorf("reading the answer of paiinit: %w", err)
	}
	if a.Exit != 0 {
		return answer{}, &Refusal{a.Exit, a.Error}
	}
	return a, nil
}
