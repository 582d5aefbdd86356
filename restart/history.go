package restart

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/paiinit/paiinit/joblog"
)

// Kind is the kind of failure that ended a generation.
type Kind string

// The kinds of failures.
const (
	Failed Kind = "failed" // the command, or one of its processes
	Lost   Kind = "lost"   // a rank
	Hung   Kind = "hung"   // the command made no progress in time
)

// NoRank stands for the rank of a cause that is no rank's.
const NoRank = -1

// End is how one generation ended.
type End struct {
	Generation int // from 1, and higher than that of any earlier launch
	Status     int // exit status of the job; 75 for a lost rank
	Rank       int // of the first cause; NoRank = none
	Name       string
	Cause      string // for people; only its first line is kept
	Kind       Kind   // of a failure
	Stopped    bool   // a signal from outside ended the job
	// Own says that Status is the verdict of paiinit, and not the status of the command, which may be the same number.
	// The verdict 75 on a lost rank or a hang is a failure like that of a command.
	Own      bool
	Ran      time.Duration // from the launch to the end; 0 = the generation was not launched
	Progress string        // any text that changes when the job makes progress; "" = not used, or unknown
}

// Decision is what follows the end of a generation.
type Decision struct {
	Again bool
	// Number counts the restarts within the allowed ones: this one included if Again.
	Number int
	Of     int           // allowed restarts; Unlimited = no limit
	Delay  time.Duration // before the restart
	Why    string        // why the job is not restarted; empty if Again
}

// Resumption is how the job came to run again.
type Resumption struct {
	Generation int           // that runs now
	Clear      time.Duration // until no process of the last generation was left on any rank
	Rejoin     time.Duration // until all ranks were present
	Commit     time.Duration // until all ranks had agreed and were launched
}

// History is how the generations of a job have ended. It keeps the first and the last ends. It is not safe for
// concurrent use.
type History struct {
	policy Policy
	state  state
	ended  time.Time // when the last generation ended
}

// state is what a history knows, except its policy.
type state struct {
	Ends     int    `json:"ends"`     // added so far, kept or not
	Total    int    `json:"total"`    // restarts since the first launch
	Used     int    `json:"used"`     // of these, since the last reset
	Crashes  int    `json:"crashes"`  // consecutive ends that are alike and came soon after the launch
	Stalls   int    `json:"stalls"`   // consecutive generations without progress
	Progress string `json:"progress"` // hash of the last known progress; "" = none is known

	// The decision after the last end.
	Of    int           `json:"of"`
	Delay time.Duration `json:"delay"`
	Why   string        `json:"why"`

	Kept []entry `json:"kept"` // the first keptFirst ends and the last keptLast
}

// entry is one end, and the restart that followed it.
type entry struct {
	Generation int           `json:"generation"`
	Status     int           `json:"status"`
	Rank       int           `json:"rank"`
	Name       string        `json:"name"`
	Cause      string        `json:"cause"`
	Kind       Kind          `json:"kind"`
	Stopped    bool          `json:"stopped"`
	Ran        time.Duration `json:"ran"`

	Restart  int           `json:"restart"` // 0 = none followed
	Next     int           `json:"next"`    // generation that the restart began; 0 = it does not run yet
	Downtime time.Duration `json:"downtime"`
	Clear    time.Duration `json:"clear"`
	Rejoin   time.Duration `json:"rejoin"`
	Commit   time.Duration `json:"commit"`
}

// Limits of what a history keeps, so that its encoding has at most [MaxEncoded] bytes.
const (
	keptFirst = 4
	keptLast  = 12

	maxName  = 100 // bytes
	maxCause = 200
	maxWhy   = 300

	maxStatus = 255
	maxCount  = 1<<31 - 1 // of restarts, generations and ranks
)

// New returns the history of a job that has not been launched. progress is End.Progress at the first launch; without
// it the first generation counts as progress.
func New(p Policy, progress string) *History {
	return &History{policy: p, state: state{Progress: fingerprint(progress)}}
}

// Add records that a generation ended at this time, and decides whether the job runs again. A generation ends once:
// another end of the same generation or an earlier one changes nothing and gets the decision on the last end, and so
// does every end after a decision against a restart.
func (h *History) Add(end End, now time.Time) Decision {
	if h.policy.Restarts == 0 {
		return Decision{Why: "restarts are off"}
	}
	e := end.entry()
	if last := h.last(); last != nil && (h.state.Why != "" || e.Generation < last.following()) {
		return h.decision()
	}
	if h.policy.Reset > 0 && e.Ran >= h.policy.Reset {
		h.state.Used = 0
	}
	h.countCrash(e)
	h.countStall(end.Progress)
	h.state.Of, h.state.Delay, h.state.Why = h.policy.Restarts, 0, clean(h.whyNot(e, end.Own), maxWhy)
	if h.state.Why == "" {
		h.state.Used++
		h.state.Total++
		h.state.Delay = h.policy.delay(h.state.Used)
		e.Restart = h.state.Used
	}
	h.state.Ends++
	h.state.Kept = append(h.state.Kept, e)
	if len(h.state.Kept) > keptFirst+keptLast {
		h.state.Kept = slices.Delete(h.state.Kept, keptFirst, keptFirst+1)
	}
	h.ended = now
	return h.decision()
}

// Resumed records that the job runs again since this time. It ignores a generation that is not later than the last end,
// and a job that is not to be restarted.
func (h *History) Resumed(r Resumption, now time.Time) {
	last := h.last()
	if last == nil || h.state.Why != "" || r.Generation <= last.Generation || r.Generation > maxCount {
		return
	}
	last.Next = r.Generation
	last.Downtime = max(0, now.Sub(h.ended)) // the clock of a successor of rank 0 may be behind
	last.Clear, last.Rejoin, last.Commit = max(0, r.Clear), max(0, r.Rejoin), max(0, r.Commit)
}

// Newer reports whether h knows of a later end or restart than the other history of the same job.
func (h *History) Newer(than *History) bool {
	latest := func(h *History) (ended, running int) {
		if last := h.last(); last != nil {
			return last.Generation, last.Next
		}
		return 0, 0
	}
	ended, running := latest(h)
	otherEnded, otherRunning := latest(than)
	return cmp.Or(cmp.Compare(ended, otherEnded), cmp.Compare(running, otherRunning)) > 0
}

// last returns the last end, nil if there is none.
func (h *History) last() *entry {
	if len(h.state.Kept) == 0 {
		return nil
	}
	return &h.state.Kept[len(h.state.Kept)-1]
}

// following returns the lowest number that the generation after e may have.
func (e *entry) following() int { return max(e.Generation+1, e.Next) }

// decision returns the decision on the last end.
func (h *History) decision() Decision {
	s := &h.state
	return Decision{Again: s.Why == "", Number: s.Used, Of: s.Of, Delay: s.Delay, Why: s.Why}
}

// entry returns what the history keeps of an end. Values that no end can have become the worst ones that it can.
func (end End) entry() entry {
	e := entry{
		Generation: min(max(1, end.Generation), maxCount), Status: end.Status, Ran: max(0, end.Ran),
		Rank: min(max(NoRank, end.Rank), maxCount), Name: clean(end.Name, maxName),
		Cause: clean(end.Cause, maxCause), Kind: end.Kind, Stopped: end.Stopped,
	}
	if e.Status < 0 || e.Status > maxStatus {
		e.Status = maxStatus
	}
	if e.Kind != Lost && e.Kind != Hung {
		e.Kind = Failed
	}
	if e.Cause == "" {
		e.Cause = fmt.Sprintf("the job ended with status %d", e.Status)
	}
	return e
}

// countCrash counts e if it came soon after its launch, and begins anew if it is unlike the end before.
func (h *History) countCrash(e entry) {
	last := h.last()
	switch {
	case e.Ran == 0 || e.Ran >= h.policy.CrashWindow:
		h.state.Crashes = 0
	case h.state.Crashes > 0 && last.Status == e.Status &&
		(last.Rank == e.Rank || last.Kind == Failed && e.Kind == Failed): // of several ranks, any may be noticed first
		h.state.Crashes++
	default:
		h.state.Crashes = 1
	}
}

// countStall counts a generation that left the progress as it was. One whose progress is unknown proves nothing.
func (h *History) countStall(progress string) {
	now := fingerprint(progress)
	if now == "" {
		return
	}
	if now == h.state.Progress {
		h.state.Stalls++
	} else {
		h.state.Stalls = 0
	}
	h.state.Progress = now
}

// statusRetry is paiinit's own status of a job that a restart may help.
const statusRetry = 75

// whyNot returns why the job does not run again after e, "" if it does. A used-up budget comes before the rules about
// repetition, because it is what the user set.
func (h *History) whyNot(e entry, own bool) string {
	p := h.policy
	switch {
	case e.Status == 0:
		return "status 0 is success"
	case e.Stopped:
		return "a signal to a container asked for the end"
	case own && (e.Kind == Failed || e.Status != statusRetry):
		return fmt.Sprintf("paiinit itself ended the job with status %d", e.Status)
	case slices.Contains(p.NotOn, e.Status):
		return fmt.Sprintf("--no-restart-on lists status %d", e.Status)
	case p.On == OnLost && e.Kind != Lost:
		return "--restart-on lost allows restarts only after the loss of a rank"
	case p.Restarts != Unlimited && h.state.Used >= p.Restarts:
		return fmt.Sprintf("%d of %d restarts are used up", h.state.Used, p.Restarts)
	case p.CrashCount > 0 && h.state.Crashes >= p.CrashCount:
		return fmt.Sprintf("crash loop: %d generations in a row ended less than %s after the launch, "+
			"each with status %d", h.state.Crashes, joblog.Seconds(p.CrashWindow), e.Status)
	case p.Stalls > 0 && h.state.Stalls >= p.Stalls:
		return fmt.Sprintf("no progress: the progress file did not change in %d generations in a row", h.state.Stalls)
	}
	return ""
}

// fingerprint returns a short text for any progress, and "" for "".
func fingerprint(progress string) string {
	if progress == "" {
		return ""
	}
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(progress))
	return fmt.Sprintf("%016x", hash.Sum64())
}

// clean returns the first line of a text, printable and with at most so many bytes.
func clean(text string, most int) string {
	text, _, _ = strings.Cut(strings.TrimSpace(text), "\n")
	text = strings.TrimSpace(strings.Map(func(r rune) rune { // Map replaces invalid UTF-8
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text))
	if len(text) <= most {
		return text
	}
	const more = "…"
	return strings.TrimSpace(strings.ToValidUTF8(text[:most-len(more)], "")) + more
}

// Left reports whether the allowed restarts are not used up.
func (h *History) Left() bool {
	return h.policy.Restarts == Unlimited || h.state.Used < h.policy.Restarts
}
