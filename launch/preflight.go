package launch

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// Checked is how the preflight of one rank ended: the site's own check of a container before the launch.
type Checked struct {
	Running bool          `json:"running,omitempty"`
	Status  int           `json:"status,omitempty"` // exit status, 128+n for signal n
	Limit   time.Duration `json:"limit,omitempty"`  // it did not end in this time
	Error   string        `json:"error,omitempty"`  // it could not be started
	Tail    []string      `json:"tail,omitempty"`   // last lines of its output
}

// The output of a preflight that rank 0 gets. In JSON it takes less than 8 KiB, whatever the bytes are.
const (
	preflightLines = 5
	preflightLine  = 200 // bytes

	preflightGrace = 2 * time.Second // from SIGTERM to SIGKILL
)

// Preflight runs a line of a shell with c's environment, directory and stderr. Its stdout becomes stderr, because
// stdout belongs to the job. The line gets SIGTERM after limit (0 = none), and when ctx ends.
func Preflight(ctx context.Context, c Command, line string, limit time.Duration) Checked {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if limit > 0 {
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	c.Path = "/bin/sh"
	c.Args = []string{c.Path, "-c", `exec /bin/sh -c "$0" >&2`, line}
	c.TailLines, c.Grace, c.WholeGroup = preflightLines, preflightGrace, true
	result, err := Run(ctx, c)
	checked := Checked{Status: result.Status(), Tail: result.Tail}
	for i, l := range checked.Tail {
		checked.Tail[i] = printable(l[:min(len(l), preflightLine)])
	}
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		checked.Status, checked.Limit = cmp.Or(checked.Status, 1), limit
	case err != nil:
		checked.Status, checked.Error = cmp.Or(checked.Status, statusCannotExecute), err.Error()
	}
	return checked
}

// printable replaces what could disturb the log of another container.
func printable(line string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == utf8.RuneError {
			return '?'
		}
		return r
	}, line)
}

// Encode packs the result for rank 0.
func (c Checked) Encode() []byte {
	b, _ := json.Marshal(c) // cannot fail: it has only strings and numbers
	return b
}

// Failed reports whether the launch must not happen.
func (c Checked) Failed() bool { return !c.Running && c.Status != 0 }

func (c Checked) String() string {
	switch {
	case c.Error != "":
		return c.Error
	case c.Limit > 0:
		return fmt.Sprintf("did not end in %v", c.Limit.Round(time.Millisecond))
	case c.Status > 128:
		return "was ended by " + SignalName(c.Status-128)
	}
	return fmt.Sprintf("exit status %d", c.Status)
}

// Preflights holds the results of all ranks, on rank 0. Its zero value is ready.
type Preflights struct {
	mu      sync.Mutex
	results map[string]Checked // by the ID of the rank
}

// Put notes the result of a rank, and ignores one that it cannot read.
func (p *Preflights) Put(id string, encoded []byte) {
	var c Checked
	if json.Unmarshal(encoded, &c) != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.results == nil {
		p.results = make(map[string]Checked)
	}
	p.results[id] = c
}

// maxPreflights bounds how many failures Refuse describes.
const maxPreflights = 8

// Refuse returns why the job must not be launched, "" if no preflight has failed. names are those of the ranks with
// these IDs.
func (p *Preflights) Refuse(ids, names []string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var lines []string
	failed := 0
	for i, id := range ids {
		c := p.results[id]
		if !c.Failed() {
			continue
		}
		if failed++; failed > maxPreflights {
			continue
		}
		lines = append(lines, fmt.Sprintf("  %s: %s", names[i], c))
		for _, l := range c.Tail {
			lines = append(lines, "    "+l)
		}
	}
	if failed == 0 {
		return ""
	}
	if failed > maxPreflights {
		lines = append(lines, fmt.Sprintf("  and %d more", failed-maxPreflights))
	}
	first := fmt.Sprintf("the preflight failed on %d of %d ranks", failed, len(ids))
	return strings.Join(slices.Insert(lines, 0, first), "\n")
}
