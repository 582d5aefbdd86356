package launch

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/internal/proc"
)

// Held are the processes of the job that Hold has stopped.
type Held struct {
	c       *clearing
	stopped map[identity]bool
}

const (
	shortestHold = time.Millisecond // before Hold looks again; it doubles each time
	longestHold  = 100 * time.Millisecond
)

// Hold sends SIGSTOP to the processes that Clear would end, until ctx ends. It looks for them repeatedly, because a
// process may start others before it stops, and because the end of a freeze may continue processes one by one. Hold
// does not touch processes that are stopped already, nor those that catch SIGCONT: Open MPI's mpirun forwards it, and
// if it still starts its daemons, it ends with 0 and has run nothing (4.1.4). The caller then continues the processes
// with Release, or ends them with Clear. After an error the processes that Hold has found so far are stopped.
func Hold(ctx context.Context, c Clearing) (*Held, error) {
	h := &Held{c: newClear(c), stopped: make(map[identity]bool)}
	for pause := shortestHold; ; pause = min(2*pause, longestHold) {
		switch more, err := h.stop(); {
		case err != nil:
			return h, fmt.Errorf("stopping the processes of the job: %w", err)
		case more:
			pause = shortestHold / 2
			continue
		}
		select {
		case <-ctx.Done():
			return h, nil
		case <-time.After(pause):
		}
	}
}

// stop stops the processes that run, and reports whether there were new ones.
func (h *Held) stop() (more bool, err error) {
	found, err := h.c.look(time.Now().Add(time.Second))
	if err != nil {
		return false, err
	}
	for _, p := range found.job {
		if p.State == 'T' || p.State == 't' || proc.Catches(h.c.fsys, p.PID, unix.SIGCONT) {
			continue
		}
		id := identityOf(p)
		more = more || !h.stopped[id]
		h.stopped[id] = true
		h.c.send(p, &target{pidfd: -1}, unix.SIGSTOP)
	}
	return more, nil
}

// Release continues the processes.
func (h *Held) Release() {
	for id := range h.stopped {
		if h.c.lives(id) {
			_ = h.c.kill(id.pid, unix.SIGCONT)
		}
	}
}
