package inspect

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"
)

// checked is how the preflight of one rank ended: the site's own check of a container before the launch.
type checked struct {
	Running bool     `json:"running,omitempty"`
	Failure string   `json:"failure,omitempty"`
	Tail    []string `json:"tail,omitempty"` // last lines of its output
}

func (c checked) encode() []byte {
	b, _ := json.Marshal(c) // cannot fail: it has only strings
	return b
}

// Hold returns a channel that gets the value of ready once the preflight has ended. serve is for its goroutine, which
// ends with ctx. Without a preflight Hold returns ready.
func (c *Comparison) Hold(ctx context.Context, serve *sync.WaitGroup, ready <-chan []byte) <-chan []byte {
	if c.Preflight == "" {
		return ready
	}
	held := make(chan []byte, 1)
	serve.Go(func() {
		select {
		case <-c.passed:
		case <-ctx.Done():
			return
		}
		select {
		case v := <-ready:
			held <- v
		case <-ctx.Done():
		}
	})
	return held
}

// runPreflight tells that the preflight runs, and then its result.
func (c *Comparison) runPreflight(ctx context.Context, s Setup) {
	s.tell(c, preflightNote, checked{Running: true}.encode())
	begin := time.Now()
	failure, tail := s.Preflight(ctx, s.Timeout/10*9) // so that its result arrives before rank 0 gives up
	if ctx.Err() != nil {
		return // it was ended together with this container
	}
	if failure != "" {
		c.Log.Warn("the preflight has failed", "phase", "check", "reason", failure,
			"elapsed", time.Since(begin).Round(time.Millisecond))
	}
	s.tell(c, preflightNote, checked{Failure: failure, Tail: tail}.encode())
	close(c.passed)
}

// maxPreflights bounds how many failures a reason describes.
const maxPreflights = 8

// failedPreflights returns the reason not to launch the job, "" if no preflight has failed.
func (b *Board) failedPreflights(ranks []Rank) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var lines []string
	failed := 0
	for _, r := range ranks {
		var c checked
		if text := b.preflights[r.ID]; text == nil || json.Unmarshal(text, &c) != nil || c.Failure == "" {
			continue
		}
		if failed++; failed > maxPreflights {
			continue
		}
		lines = append(lines, fmt.Sprintf("\n  %s: %s", r.Name, c.Failure))
		for _, l := range c.Tail {
			lines = append(lines, "\n    "+l)
		}
	}
	if failed > maxPreflights {
		lines = append(lines, fmt.Sprintf("\n  and %d more", failed-maxPreflights))
	}
	if failed == 0 {
		return ""
	}
	return fmt.Sprintf("the preflight failed on %d of %d ranks", failed, len(ranks)) + strings.Join(lines, "")
}
