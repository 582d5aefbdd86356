package rsh

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
)

// Numbered is a host of the job and its number in the output.
type Numbered struct {
	Number int
	Host   string
}

// Each runs one command on several hosts, through the agent of this container.
type Each struct {
	Socket string // the agent's socket
	AtOnce int    // the number of hosts on which the command runs concurrently
	// Stdout and Stderr get whole lines, each prefixed by the number of its host.
	Stdout, Stderr io.Writer
	// Ended is called when the command has ended on a host; err says why it could not be started here.
	Ended func(host Numbered, status int, err error)

	writing sync.Mutex // keeps lines whole

	mu      sync.Mutex
	running map[chan os.Signal]bool
	stopped syscall.Signal // the signal after which no further command starts; 0 = none
	worst   int
}

// Run runs the command on all hosts and returns the highest exit status. It forwards each signal to all running
// commands. After a signal that asks to end, no further command starts, and Run returns 128+n if no command has failed.
func (e *Each) Run(ctx context.Context, hosts []Numbered, command string, signals <-chan os.Signal) (status int) {
	e.running = make(map[chan os.Signal]bool)
	done := make(chan struct{})
	var passing sync.WaitGroup
	passing.Go(func() { e.pass(signals, done) })
	onHosts(hosts, e.AtOnce, func(_ int, host Numbered) { e.one(ctx, host, command) })
	close(done)
	passing.Wait()
	if e.worst == 0 && e.stopped != 0 {
		return 128 + int(e.stopped)
	}
	return e.worst
}

func (e *Each) pass(signals <-chan os.Signal, done <-chan struct{}) {
	for {
		select {
		case <-done:
			return
		case sig := <-signals:
			e.mu.Lock()
			switch sig {
			case syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT:
				e.stopped = sig.(syscall.Signal)
			}
			for to := range e.running {
				select {
				case to <- sig:
				default: // its queue is full of unread signals
				}
			}
			e.mu.Unlock()
		}
	}
}

func (e *Each) one(ctx context.Context, host Numbered, command string) {
	signals := make(chan os.Signal, 16)
	e.mu.Lock()
	if e.stopped != 0 {
		e.mu.Unlock()
		return
	}
	e.running[signals] = true
	e.mu.Unlock()
	c := Caller{Socket: e.Socket, Signals: func() <-chan os.Signal { return signals }}
	var copying sync.WaitGroup
	var err error
	status := exitTransport
	if c.Stdout, err = e.prefix(&copying, e.Stdout, host.Number); err == nil {
		c.Stderr, err = e.prefix(&copying, e.Stderr, host.Number)
	}
	if err == nil {
		status = c.Run(ctx, Invocation{Host: host.Host, Command: command})
	}
	_, _ = c.Stdout.Close(), c.Stderr.Close() // harmless if nil
	copying.Wait()
	e.Ended(host, status, err)
	e.mu.Lock()
	delete(e.running, signals)
	e.worst = max(e.worst, status)
	e.mu.Unlock()
}

// prefix returns a file. It copies the file's lines to w, prefixed by the number, until every process has closed the
// file.
func (e *Each) prefix(copying *sync.WaitGroup, w io.Writer, number int) (*os.File, error) {
	r, file, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	copying.Go(func() {
		defer func() { _ = r.Close() }()
		in := bufio.NewReaderSize(r, 64<<10)
		for {
			line, err := in.ReadSlice('\n') // splits a line longer than the buffer
			if len(line) > 0 {
				e.writing.Lock()
				_, werr := fmt.Fprintf(w, "%d: %s\n", number, strings.TrimSuffix(string(line), "\n"))
				e.writing.Unlock()
				if werr != nil {
					return // the command gets SIGPIPE
				}
			}
			if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
				return
			}
		}
	})
	return file, nil
}

// output runs a command as Run does.
func (c Caller) output(ctx context.Context, host, command string) Output {
	o := Output{Host: host, Status: exitTransport}
	var r *os.File
	if r, c.Stdout, o.Err = os.Pipe(); o.Err != nil {
		return o
	}
	var reading sync.WaitGroup
	reading.Go(func() { o.Text, o.Err = io.ReadAll(r) })
	o.Status = c.Run(ctx, Invocation{Host: host, Command: command, NoStdin: true})
	_ = c.Stdout.Close()
	reading.Wait()
	_ = r.Close()
	return o
}

// Output is what a command on a host has printed and how it ended.
type Output struct {
	Host   string
	Text   []byte
	Status int
	Err    error // why the output could not be read
}

// Outputs runs one command on several hosts, on atOnce of them at a time, and returns their outputs in the same order.
func (c Caller) Outputs(ctx context.Context, hosts []string, command string, atOnce int) []Output {
	outputs := make([]Output, len(hosts))
	onHosts(hosts, atOnce, func(i int, host string) { outputs[i] = c.output(ctx, host, command) })
	return outputs
}

// onHosts calls do for every host, for atOnce of them at a time, and returns when all calls have.
func onHosts[Host any](hosts []Host, atOnce int, do func(i int, host Host)) {
	places := make(chan struct{}, atOnce)
	var running sync.WaitGroup
	for i, host := range hosts {
		places <- struct{}{}
		running.Go(func() {
			defer func() { <-places }()
			do(i, host)
		})
	}
	running.Wait()
}

// Quote returns a shell command that runs the words unchanged. A single word is already a shell command.
func Quote(words []string) string {
	if len(words) == 1 {
		return words[0]
	}
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " ")
}
