package inspect

import (
	"context"
	"log/slog"
	"strings"
	"time"
)

// The modes of a Check.
const (
	CheckWarn    = "warn"    // rank 0 warns once if the ranks differ
	CheckRequire = "require" // rank 0 does not launch a job whose ranks differ
	CheckOff     = "off"     // nothing is collected
)

// FactsTimeout is how long rank 0 waits for the facts of all ranks once all are present.
const FactsTimeout = time.Second

// Check compares the ranks of a job. Its zero value compares nothing.
type Check struct {
	Mode string
	Log  *slog.Logger
	Board
}

// Collect collects the facts of this container and passes them, encoded, to tell. Unless Mode is CheckRequire, it first
// calls rest, which waits until the work does not disturb the launch; false = the job has ended.
func (c *Check) Collect(ctx context.Context, rest func() bool, s Source, tell func([]byte)) {
	if c.Mode == CheckOff || c.Mode == "" || c.Mode == CheckWarn && !rest() {
		return
	}
	found := make(chan []byte, 1)
	go func() { found <- Encode(Facts(s)) }() // a file system may hang
	select {
	case facts := <-found:
		tell(facts)
	case <-ctx.Done():
	}
}

// Refuse returns, with CheckRequire, why rank 0 does not launch the job, else "". retry says that a rank has not told
// its facts in time, so that a retry may help.
func (c *Check) Refuse(ranks []Rank) (reason string, retry bool) {
	if c.Mode != CheckRequire || len(ranks) < 2 {
		return "", false
	}
	drifts, absent := c.Compare(ranks)
	switch {
	case Warn(drifts):
		return "the ranks differ, and --check is require:\n  " + strings.Join(Lines(drifts), "\n  "), false
	case len(absent) > 0:
		return "--check is require, but these ranks have not told their facts within " + FactsTimeout.String() + ": " +
			foldNames(absent) + "; give every rank the same --check", true
	}
	return "", false
}

// Watch waits on rank 0, beside the command, for the facts of all ranks, and warns if they differ. clock measures how
// far a rank's clock is ahead.
func (c *Check) Watch(ctx context.Context, ranks []Rank,
	clock func(ctx context.Context, rank int) (ahead, bound time.Duration, ok bool),
) {
	if c.Mode == CheckOff || len(ranks) < 2 {
		return
	}
	soon, cancel := context.WithTimeout(ctx, FactsTimeout)
	defer cancel()
	c.Await(soon, ranks)
	measuring, cancel := context.WithTimeout(ctx, FactsTimeout)
	defer cancel()
	for _, r := range c.Suspects(ranks) {
		if ahead, bound, ok := clock(measuring, r.Rank); ok {
			c.Skew(r.ID, ahead, bound)
		}
	}
	drifts, _ := c.Compare(ranks)
	if !Warn(drifts) || ctx.Err() != nil {
		return
	}
	c.Log.Warn("facts differ between ranks", "phase", "check", "drift", strings.Join(Lines(drifts), "\n"),
		"hint", "paiinit status --drift prints them again; --check off ends the comparison")
}

// Table returns the rows of what differs now, nil if nothing does, and the ranks whose facts are not known.
func (c *Check) Table(ranks []Rank) (rows [][]string, absent []string) {
	drifts, absent := c.Compare(ranks)
	return Rows(drifts), absent
}
