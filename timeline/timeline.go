// Package timeline shows what happened to each rank of a launch, and when: as text, as a trace for Perfetto, and as one
// page of HTML. It gets plain values and writes; it asks for nothing.
package timeline

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Rank is one rank and the times of its events. Zero = it has not happened, or is not known.
type Rank struct {
	Rank      int // -1 = not agreed yet
	Name      string
	Started   time.Time // its container
	Resolved  time.Time // its name
	Heard     time.Time // rank 0 first knew of it
	Reachable time.Time // rank 0 was connected to it
	Committed time.Time // it had acknowledged the list of ranks
	Launched  time.Time // it was told to go; on rank 0: the command was started
	Session   time.Time // a launcher's first session on it
	Ended     time.Time
	Lost      bool
	Reason    string // why it is missing or lost
}

// Timeline is a launch as it stands at Now.
type Timeline struct {
	Now   time.Time
	Ranks []Rank
}

// begin returns the earliest start of a container, or, where it is unknown, when rank 0 first knew of it.
func (r *Rank) begin() time.Time {
	switch {
	case r.Started.IsZero():
		return r.Heard
	case !r.Heard.IsZero() && r.Heard.Before(r.Started):
		return r.Heard
	}
	return r.Started
}

// absent reports whether the rank never came.
func (r *Rank) absent() bool { return r.Reachable.IsZero() }

// failed reports whether the rank never came, or was lost.
func (r *Rank) failed() bool { return r.absent() || r.Lost }

// origin is the time 0 of every output: the first sign of the first container.
func (t *Timeline) origin() time.Time {
	first := time.Time{}
	for i := range t.Ranks {
		if at := t.Ranks[i].begin(); !at.IsZero() && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	if first.IsZero() {
		return t.Now
	}
	return first
}

// launched returns when rank 0 started the command, or, where every rank runs it, when the first rank was told to.
// Zero = not yet.
func (t *Timeline) launched() time.Time {
	first := time.Time{}
	for i := range t.Ranks {
		r := &t.Ranks[i]
		if r.Rank == 0 && !r.Launched.IsZero() {
			return r.Launched
		}
		if !r.Launched.IsZero() && (first.IsZero() || r.Launched.Before(first)) {
			first = r.Launched
		}
	}
	return first
}

// ended returns when the job ended; zero = it has not.
func (t *Timeline) ended() time.Time {
	for i := range t.Ranks {
		if r := &t.Ranks[i]; r.Rank == 0 {
			return r.Ended
		}
	}
	return time.Time{}
}

// last returns the rank for which the launch waited longest; nil = none is known.
func (t *Timeline) last() *Rank {
	var last *Rank
	for i := range t.Ranks {
		if r := &t.Ranks[i]; !r.absent() && (last == nil || r.Reachable.After(last.Reachable)) {
			last = r
		}
	}
	return last
}

// shortest is the shortest step that the critical path mentions, if the ranks needed no more than ten times as long.
const shortest = 100 * time.Millisecond

// Critical names the critical path of the launch in one line: the rank that came last, or the ranks that are missing,
// and why.
func (t *Timeline) Critical() string {
	if s := t.missing(); s != "" {
		return s
	}
	last := t.last()
	if last == nil {
		return "no rank is known"
	}
	if len(t.Ranks) == 1 {
		return "one rank: there was none to wait for"
	}
	origin := t.origin()
	total := last.Reachable.Sub(origin)
	if launched := t.launched(); !launched.IsZero() {
		total = launched.Sub(origin)
	}
	steps := t.steps(last, origin)
	var said []string
	for _, s := range steps {
		if s.took >= max(shortest, total/20) {
			said = append(said, fmt.Sprintf(s.says, Span(s.took)))
		}
	}
	if len(said) == 0 {
		return fmt.Sprintf("%s was last, but no rank kept the others waiting: %s from the first start to the last rank",
			last.Name, Span(last.Reachable.Sub(origin)))
	}
	return last.Name + " was last: " + strings.Join(said, "; ")
}

// step is a part of the critical path.
type step struct {
	took time.Duration
	says string // with a verb for took
}

// steps splits the time from origin to the launch into what rank r needed, and what came after it.
func (t *Timeline) steps(r *Rank, origin time.Time) []step {
	var all []step
	at := origin
	add := func(next time.Time, says string) {
		if !next.IsZero() && next.After(at) {
			all = append(all, step{next.Sub(at), says})
			at = next
		}
	}
	add(r.Started, "its container started %s after the first")
	if r.Resolved.Before(r.Reachable) {
		add(r.Resolved, "its name resolved %s later")
	}
	add(r.Heard, "rank 0 heard of it %s later")
	add(r.Reachable, "rank 0 could connect %s later")
	add(t.launched(), "the launch came %s after that")
	return all
}

// missing describes the ranks that never came; "" = there are none.
func (t *Timeline) missing() string {
	var first *Rank
	count := 0
	for i := range t.Ranks {
		if r := &t.Ranks[i]; r.absent() && r.Reason != "" {
			if count++; first == nil {
				first = r
			}
		}
	}
	switch count {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("%s is missing: %s", first.Name, first.Reason)
	}
	return fmt.Sprintf("%d are missing, such as %s: %s", count, first.Name, first.Reason)
}

// slowestFirst returns the ranks in the order in which a reader should see them: missing, lost, then the ranks that
// came last.
func (t *Timeline) slowestFirst() []*Rank {
	all := make([]*Rank, len(t.Ranks))
	for i := range t.Ranks {
		all[i] = &t.Ranks[i]
	}
	class := func(r *Rank) int {
		switch {
		case r.absent():
			return 0
		case r.Lost:
			return 1
		}
		return 2
	}
	slices.SortStableFunc(all, func(a, b *Rank) int {
		return cmp.Or(class(a)-class(b), b.Reachable.Compare(a.Reachable), cmp.Compare(uint(a.Rank), uint(b.Rank)))
	})
	return all
}

// Span formats a duration in as many digits as a person reads: 0.04 s, 2.1 s, 38 s, 3 m 12 s, 3 h 12 m.
func Span(d time.Duration) string {
	if d < 0 {
		return "-" + Span(-d)
	}
	switch s := d.Seconds(); {
	case s < 0.0995:
		return strconv.FormatFloat(s, 'f', 2, 64) + " s"
	case s < 9.95:
		return strconv.FormatFloat(s, 'f', 1, 64) + " s"
	case s < 99.5:
		return strconv.FormatFloat(s, 'f', 0, 64) + " s"
	}
	d = d.Round(time.Second)
	if d < time.Hour {
		return fmt.Sprintf("%d m %d s", d/time.Minute, d%time.Minute/time.Second)
	}
	d = d.Round(time.Minute)
	return fmt.Sprintf("%d h %d m", d/time.Hour, d%time.Hour/time.Minute)
}

// stage is a part of a rank's bar.
type stage struct {
	kind     kind
	from, to time.Time
}

// kind is what a rank did during a stage.
type kind int

const (
	starting   kind = iota // the container runs, rank 0 has not heard of it
	connecting             // rank 0 has heard of it
	waiting                // for the other ranks
	launching              // the ranks agree, rank 0 starts the command
	running                // the command
)

// kinds has, for each kind, its name, its character in text and its colour's name in a trace.
func kinds() []struct{ name, char, color string } {
	return []struct{ name, char, color string }{
		{"starting", ".", "thread_state_runnable"},
		{"connecting", "-", "thread_state_iowait"},
		{"waiting", "=", "thread_state_sleeping"},
		{"launching", "#", "rail_animation"},
		{"running", ">", "thread_state_running"},
	}
}

// stages splits the life of a rank. A stage that has not ended ends at now.
func (t *Timeline) stages(r *Rank) []stage {
	if r.begin().IsZero() {
		return nil
	}
	done := t.Now
	if e := cmp.Or(r.Ended, t.ended()); !e.IsZero() {
		done = e
	}
	var out []stage
	at := r.begin()
	enough := false
	add := func(k kind, next time.Time) {
		if enough {
			return
		}
		if next.IsZero() || next.After(done) {
			next, enough = done, true
		}
		if next.After(at) {
			out = append(out, stage{k, at, next})
			at = next
		}
	}
	add(starting, r.Heard)
	add(connecting, r.Reachable)
	add(waiting, t.complete())
	add(launching, cmp.Or(r.Launched, t.launched()))
	add(running, done)
	return out
}

// complete returns when the last rank was reachable, or zero while ranks are missing or the launch has not come.
func (t *Timeline) complete() time.Time {
	last := t.last()
	if last == nil || t.missing() != "" || t.launched().IsZero() {
		return time.Time{}
	}
	return last.Reachable
}
