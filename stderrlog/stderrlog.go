// Package stderrlog writes a log to a standard error that may not be read, such as a full pipe, without delaying the
// caller. Lines wait in a queue of bounded size, lines that do not fit are dropped and counted, and the last lines of a
// job are written first when the time is short.
//
// A Log handles only lines of bytes: levels and formats belong to the handler that writes to it.
package stderrlog

import (
	"bytes"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"
)

const (
	// writeTimeout bounds how long a log call waits until its line is written. Because it waits, the log of a healthy
	// container is in order with the job's output, and a crash loses no line.
	writeTimeout = 100 * time.Millisecond
	// queueLimit bounds the bytes that are queued while standard error is not read.
	queueLimit = 256 << 10
	// flushTimeout bounds how long the end of a container waits for a reader of its log.
	flushTimeout = time.Second
)

// Log takes one line with each Write.
type Log struct {
	out io.Writer

	mu       sync.Mutex
	changed  sync.Cond // a line was queued, or the log is closing
	queue    []logLine
	size     int  // bytes in the queue
	lost     int  // lines that did not fit
	stuck    bool // a write takes longer than writeTimeout
	last     bool // the lines from now on say how the job ended
	closing  bool
	lostText func(lines int) []byte // reports dropped lines; nil = not at all
	over     chan struct{}
}

type logLine struct {
	text    []byte
	last    bool
	written chan struct{}
}

// New returns a Log that writes to out until Close.
func New(out io.Writer) *Log {
	l := &Log{out: out, over: make(chan struct{})}
	l.changed.L = &l.mu
	go l.run()
	return l
}

// Logger returns a logger that writes to the Log through a handler of the caller's, and reports dropped lines in the
// same format.
func (l *Log) Logger(handler func(io.Writer) slog.Handler) *slog.Logger {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lostText = func(lines int) []byte {
		var b bytes.Buffer
		slog.New(handler(&b)).Warn("standard error was not read, log lines were dropped", "lines", lines)
		return b.Bytes()
	}
	return slog.New(handler(l))
}

// Write takes one line. It never fails, because the caller could not do anything about it.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	if l.size+len(p) > queueLimit && !l.last { // the last lines are few, so they may exceed the limit
		l.lost++
		l.mu.Unlock()
		return len(p), nil
	}
	line := logLine{bytes.Clone(p), l.last, make(chan struct{})}
	l.queue = append(l.queue, line)
	l.size += len(p)
	stuck := l.stuck
	l.mu.Unlock()
	l.changed.Signal()
	if stuck {
		return len(p), nil
	}
	select {
	case <-line.written:
	case <-time.After(writeTimeout):
		l.mu.Lock()
		l.stuck = len(l.queue) > 0
		l.mu.Unlock()
	}
	return len(p), nil
}

// run writes until the log is closed.
func (l *Log) run() {
	defer close(l.over)
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		switch {
		case len(l.queue) > 0:
			line := l.queue[0]
			l.mu.Unlock()
			_, _ = l.out.Write(line.text)
			l.mu.Lock()
			// Close may have moved the line.
			i := slices.IndexFunc(l.queue, func(o logLine) bool { return o.written == line.written })
			l.queue = slices.Delete(l.queue, i, i+1)
			l.size -= len(line.text)
			l.stuck = l.stuck && len(l.queue) > 0
			close(line.written)
		case l.lost > 0:
			lost, text := l.lost, l.lostText
			l.lost, l.stuck = 0, true // until this line is written
			l.mu.Unlock()
			if text != nil {
				_, _ = l.out.Write(text(lost))
			}
			l.mu.Lock()
			l.stuck = len(l.queue) > 0
		case l.closing:
			return
		default:
			l.changed.Wait()
		}
	}
}

// Ending declares that the next lines say how the job ended. These are never dropped.
func (l *Log) Ending() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = true
}

// Close waits at most a second until all lines are written. A write that is still blocked ends with the process.
func (l *Log) Close() {
	l.mu.Lock()
	l.closing = true
	l.mu.Unlock()
	l.changed.Signal()
	select {
	case <-l.over:
		return
	case <-time.After(flushTimeout / 2):
	}
	l.mu.Lock()
	others := slices.DeleteFunc(slices.Clone(l.queue), func(line logLine) bool { return line.last })
	last := slices.DeleteFunc(l.queue, func(line logLine) bool { return !line.last })
	l.queue = append(last, others...)
	l.mu.Unlock()
	select {
	case <-l.over:
	case <-time.After(flushTimeout / 2):
	}
}
