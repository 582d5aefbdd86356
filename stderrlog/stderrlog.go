// Package stderrlog writes a log to a standard error that may not be read, such as a full pipe, without delaying the
// caller: lines wait in a queue of bounded size, lines that do not fit are counted, and the last lines of a job come
// first when the time to write them is short.
//
// It knows lines of bytes only: levels and formats belong to the logger that writes to it.
package stderrlog

import (
	"bytes"
	"io"
	"slices"
	"sync"
	"time"
)

const (
	// writeTimeout is how long a log call waits for its line to be written: in a healthy container the log is in order
	// with what the job writes, and no line is lost in a crash.
	writeTimeout = 100 * time.Millisecond
	// queueLimit bounds what is kept of the log while standard error is not read.
	queueLimit = 256 << 10
	// flushTimeout bounds how long the end of a container waits for a reader of its log.
	flushTimeout = time.Second
)

// Log takes one line with each Write.
type Log struct {
	out io.Writer

	mu       sync.Mutex
	queue    []logLine
	size     int  // bytes in the queue
	lost     int  // lines that did not fit
	stuck    bool // a write takes longer than writeTimeout
	last     bool // what comes from now on says how the job ended
	closing  bool
	lostText func(lines int) []byte
	wake     chan struct{}
	over     chan struct{}
}

type logLine struct {
	text    []byte
	last    bool
	written chan struct{}
}

// New returns a Log that writes to out until Close.
func New(out io.Writer) *Log {
	l := &Log{out: out, wake: make(chan struct{}, 1), over: make(chan struct{})}
	go l.run()
	return l
}

// Write takes one line. It never fails: nothing could be done about it.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	if l.size+len(p) > queueLimit && !l.last { // the last lines are few
		l.lost++
		l.mu.Unlock()
		return len(p), nil
	}
	line := logLine{bytes.Clone(p), l.last, make(chan struct{})}
	l.queue = append(l.queue, line)
	l.size += len(p)
	stuck := l.stuck
	l.mu.Unlock()
	l.call()
	if stuck {
		return len(p), nil
	}
	timeout := time.NewTimer(writeTimeout)
	defer timeout.Stop()
	select {
	case <-line.written:
	case <-timeout.C:
		l.mu.Lock()
		l.stuck = len(l.queue) > 0
		l.mu.Unlock()
	}
	return len(p), nil
}

func (l *Log) call() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// run writes until the log is closed.
func (l *Log) run() {
	defer close(l.over)
	for {
		l.mu.Lock()
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
			l.mu.Unlock()
		case l.lost > 0:
			lost := l.lost
			l.lost = 0
			l.stuck = true // until this is written
			text := l.lostText
			l.mu.Unlock()
			if text != nil {
				_, _ = l.out.Write(text(lost))
			}
			l.mu.Lock()
			l.stuck = len(l.queue) > 0
			l.mu.Unlock()
		case l.closing:
			l.mu.Unlock()
			return
		default:
			l.mu.Unlock()
			<-l.wake
		}
	}
}

// LostLines sets how lines that were dropped are told.
func (l *Log) LostLines(text func(lines int) []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lostText = text
}

// Ending says that the next lines tell how the job ended: they are never dropped.
func (l *Log) Ending() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = true
}

// Close waits for at most a second until all is written. A write that is blocked then ends with the process.
func (l *Log) Close() {
	l.mu.Lock()
	l.closing = true
	l.mu.Unlock()
	l.call()
	timeout := time.NewTimer(flushTimeout / 2)
	defer timeout.Stop()
	select {
	case <-l.over:
		return
	case <-timeout.C:
	}
	l.mu.Lock()
	var last, others []logLine
	for _, line := range l.queue {
		if line.last {
			last = append(last, line)
		} else {
			others = append(others, line)
		}
	}
	l.queue = append(last, others...)
	l.mu.Unlock()
	timeout.Reset(flushTimeout / 2)
	select {
	case <-l.over:
	case <-timeout.C:
	}
}
