package launch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/paiinit/paiinit/joblog"
)

// Hang says when a command hangs: it writes no output and its progress file does not change.
type Hang struct {
	After    time.Duration // without any sign of progress; 0 = the command is not watched
	File     string        // the absolute path of the progress file; "" = none
	Terminal bool          // the output goes to a terminal, where it cannot be seen: only File counts
	// Found is called once, when the command hangs. It ends the command, and returns false if the command was told to
	// end before: then it does not hang.
	Found func() bool
}

// Hung says that a command has made no progress.
type Hung struct {
	At    time.Time // when that was found
	Hang  Hang
	Tells string // what did not happen
}

// Limits of the time between two looks at a command. A shorter one makes little work on a file server.
const (
	hangLooks   = 20 // in Hang.After
	minHangLook = 10 * time.Millisecond
	maxHangLook = 10 * time.Second
)

// signs are those of a command's progress.
type signs struct {
	output  func() int    // changes when the command has written
	files   func() string // changes when a file has changed; it may hang with its file system
	stopped func() bool   // a signal or a debugger has stopped the command
}

// await returns true when there was no sign for h.After, and false when ctx ends. It counts ticks: each proves that
// this process was running. Time in which the container or the machine was frozen does not count, nor time in which
// the command is stopped, or in which the file system does not answer.
func (h Hang) await(ctx context.Context, s signs) bool {
	every := min(max(h.After/hangLooks, minHangLook), maxHangLook)
	tick := time.NewTicker(every)
	defer tick.Stop()
	answers := make(chan string, 1) // an answer that comes after the end does not block its goroutine
	asked, known := false, ""
	ask := func() {
		if !asked {
			asked = true
			go func() { answers <- s.files() }() // not waited for: a stat on a dead file server never returns
		}
	}
	ask()
	quiet, before := time.Duration(0), s.output()
	for {
		select {
		case <-ctx.Done():
			return false
		case now := <-answers:
			if asked = false; now != known {
				known, quiet = now, 0
			}
		case <-tick.C:
			now := s.output()
			switch {
			case now != before:
				before, quiet = now, 0
			case asked: // the last answer has not come
			case s.stopped():
				quiet = 0
			default:
				quiet += every
			}
			// One look more than After, because files were looked at one tick ago.
			if quiet > h.After && ctx.Err() == nil {
				return true
			}
			ask()
		}
	}
}

// watch looks for a hang of the command until the function that it returns is called. That returns the hang, or nil.
func (h Hang) watch(ctx context.Context, o *output, stopped func() bool) (end func() *Hung) {
	if h.After == 0 {
		return func() *Hung { return nil }
	}
	ctx, cancel := context.WithCancel(ctx)
	found := make(chan *Hung, 1)
	go func() {
		defer close(found)
		files := func() string { return FileState(h.File) + o.fileState() }
		at := time.Time{}
		if h.await(ctx, signs{o.activity, files, stopped}) {
			at = time.Now()
		}
		if !at.IsZero() && h.Found() {
			found <- &Hung{At: at, Hang: h, Tells: h.tells()}
		}
	}()
	return func() *Hung {
		cancel()
		return <-found
	}
}

// tells says which signs of progress were missing.
func (h Hang) tells() string {
	var missing []string
	if !h.Terminal {
		missing = append(missing, "no output")
	}
	if h.File != "" {
		missing = append(missing, h.File+" has not changed")
	}
	return strings.Join(missing, ", and ")
}

// hung says which command hangs, and where.
func (s Scene) hung(name string, h Hung) string {
	place := ""
	if s.Place != "" {
		place = " on " + s.Place
	}
	return fmt.Sprintf("rank %d's command %s has made no progress for %s%s: %s", s.Rank, name,
		joblog.Seconds(h.Hang.After), place, h.Tells)
}

// anyStopped reports whether a process of the tree below leader is stopped by a signal or a debugger. In job a parent
// comes before its children.
func anyStopped(job []Process, leader int) bool {
	below := map[int]bool{leader: true}
	for _, p := range job {
		if p.PID != leader && !below[p.Parent] {
			continue
		}
		below[p.PID] = true
		if p.State == 'T' || p.State == 't' {
			return true
		}
	}
	return false
}

// FileState returns a text that changes with a file or directory: when it is written, replaced, made or removed. A
// link stands for its target. It is "" for no name, and may take as long as the file system does not answer.
func FileState(name string) string {
	if name == "" {
		return ""
	}
	info, err := os.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "absent"
	case err != nil:
		return err.Error()
	}
	return stateOf(info)
}

func stateOf(info fs.FileInfo) string {
	text := fmt.Sprint(info.Size(), " ", info.ModTime().UnixNano())
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		text += fmt.Sprint(" ", st.Dev, " ", st.Ino)
	}
	return text
}
