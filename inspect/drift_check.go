package inspect

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/paiinit/paiinit/joblog"
)

// The modes of a Comparison.
const (
	CheckWarn    = "warn"    // rank 0 warns once if the ranks differ
	CheckRequire = "require" // rank 0 does not launch a job whose ranks differ
	CheckOff     = "off"     // nothing is collected
)

// factsTimeout is how long rank 0 waits for the facts of all ranks once all are present. factsDelay keeps what is
// collected later away from the launch; overloaded ranks tell their facts within lateFacts.
const (
	lateFacts    = 10 * time.Second
	factsTimeout = time.Second
	factsDelay   = 100 * time.Millisecond

	maxFactsDelay = 3 * time.Second // where processors are busy
)

// Comparison compares the ranks of a job, and runs the site's own check of this container.
type Comparison struct {
	Board
	Mode      string
	Preflight string // a line for a shell; "" = there is none
	Log       *slog.Logger

	passed chan struct{} // closed when the preflight has ended
	agreed chan struct{} // closed when ranks and self are set
	ranks  []Rank
	self   int
}

// NewComparison returns the comparison of one launch.
func NewComparison(mode, preflight string, log *slog.Logger) *Comparison {
	return &Comparison{
		Mode: mode, Preflight: preflight, Log: log, passed: make(chan struct{}), agreed: make(chan struct{}),
	}
}

// Wait returns how long the launch waits for the facts of all ranks once all are present.
func (c *Comparison) Wait() time.Duration {
	if c.Mode == CheckRequire {
		return factsTimeout
	}
	return 0
}

// Node is this container in the rendezvous.
type Node interface {
	Tell(kind string, text []byte)
	// Rest waits for d, and longer where processors are busy; false = ctx has ended.
	Rest(ctx context.Context, d time.Duration) bool
	// ClockAhead measures how far the clock of another rank is ahead.
	ClockAhead(ctx context.Context, rank int) (ahead, bound time.Duration, ok bool)
}

// Setup describes this container for a Comparison.
type Setup struct {
	ID     string // of this rank
	Alone  bool   // the job has no other rank
	Node   Node
	Source Source
	// Preflight runs the preflight; failure is "" if it has succeeded.
	Preflight func(ctx context.Context, limit time.Duration) (failure string, tail []string)
	Timeout   time.Duration // until rank 0 gives up missing ranks; 0 = never
}

func (s Setup) tell(c *Comparison, kind string, text []byte) {
	c.Put(s.ID, kind, text, 0)
	s.Node.Tell(kind, text)
}

// Begin runs the preflight until gathering ends, and tells rank 0 the facts of this container. serve is for its
// goroutines, which end with running.
func (c *Comparison) Begin(running, gathering context.Context, serve *sync.WaitGroup, s Setup) {
	if c.Preflight != "" {
		serve.Go(func() { c.runPreflight(gathering, s) })
	}
	if c.Mode != CheckOff && !s.Alone {
		serve.Go(func() { c.tellFacts(running, s) })
	}
}

// tellFacts collects the facts after the launch, or during a long wait, so that they do not delay it. CheckRequire
// needs them at once.
func (c *Comparison) tellFacts(ctx context.Context, s Setup) {
	if c.Mode != CheckRequire {
		select {
		case <-c.agreed:
		case <-time.After(factsTimeout):
		case <-ctx.Done():
		}
		resting, cancel := context.WithTimeout(ctx, maxFactsDelay)
		s.Node.Rest(resting, factsDelay)
		cancel()
		if ctx.Err() != nil {
			return
		}
	}
	found := make(chan []byte, 1)
	go func() { found <- Encode(Facts(s.Source)) }() // a file system may hang
	select {
	case facts := <-found:
		s.tell(c, factsNote, facts)
	case <-ctx.Done():
	}
}

// Refuse returns why rank 0 does not launch the job, else "". retry says that a rank has not told its facts in time, so
// that a retry may help.
func (c *Comparison) Refuse(ranks []Rank) (reason string, retry bool) {
	if reason = c.failedPreflights(ranks); reason != "" || c.Mode != CheckRequire || len(ranks) < 2 {
		return reason, false
	}
	drifts, absent := c.Compare(ranks)
	switch {
	case Matter(drifts):
		return "the ranks differ, and --check is require:\n  " + strings.Join(Lines(drifts), "\n  "), false
	case len(absent) > 0:
		return "--check is require, but these ranks have not told their facts within " + factsTimeout.String() + ": " +
			foldNames(absent) + "; give every rank the same --check", true
	}
	return "", false
}

// Agreed notes the ranks of the job and the rank of this container. On rank 0 it warns, beside the command, if facts
// differ.
func (c *Comparison) Agreed(running context.Context, serve *sync.WaitGroup, ranks []Rank, self int, node Node) {
	c.ranks, c.self = ranks, self
	close(c.agreed)
	if self == 0 && c.Mode != CheckOff && len(ranks) > 1 {
		serve.Go(func() { c.watch(running, node) })
	}
}

// watch warns once if the facts differ: when all ranks have told theirs, or after lateFacts.
func (c *Comparison) watch(ctx context.Context, node Node) {
	soon, cancel := context.WithTimeout(ctx, lateFacts)
	defer cancel()
	c.Await(soon, c.ranks)
	measuring, cancel := context.WithTimeout(ctx, factsTimeout)
	defer cancel()
	for _, r := range c.Suspects(c.ranks) {
		if ahead, bound, ok := node.ClockAhead(measuring, r.Rank); ok {
			c.Skew(r.ID, ahead, bound)
		}
	}
	drifts, _ := c.Compare(c.ranks)
	if !Matter(drifts) || ctx.Err() != nil {
		return
	}
	const hint = "paiinit status --drift prints them again; --check off ends the comparison"
	lines := Lines(drifts)
	text := "facts differ between ranks:\n  " + strings.Join(lines, "\n  ") + "\nhint: " + hint
	c.Log.Warn("facts differ between ranks", joblog.Text(text), "phase", "check",
		"drift", strings.Join(lines, "\n"), "hint", hint)
}

// Table returns, on rank 0 after the launch, a row for each value of a fact that differs, and the ranks whose facts are
// not known.
func (c *Comparison) Table() (rows [][]string, absent []string, err error) {
	select {
	case <-c.agreed:
	default:
		return nil, nil, errors.New("the ranks are compared once all are present")
	}
	if c.self != 0 {
		return nil, nil, errors.New("rank 0 compares the ranks; ask there: paiinit rsh " + c.ranks[0].Name +
			" paiinit status --drift")
	}
	drifts, absent := c.Compare(c.ranks)
	return append([][]string{}, Rows(drifts)...), append([]string{}, absent...), nil
}
