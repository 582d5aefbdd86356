package rendezvous

import (
	"fmt"
	"slices"
	"time"

	"github.com/paiinit/paiinit/joblog"
)

// Arrival says how long a rank waited for the other ranks, by its own clock. Only rank 0 sets Last and Started.
type Arrival struct {
	Last    string        // the rank that came last, as Member.Display names it
	Wait    time.Duration // from the start of the node until Last had registered, or rank 0's roster had come
	Started time.Duration // part of Wait before the container of Last had started; 0 = none, or not known
}

// shortStart is the shortest time before a container's start that is worth a word.
const shortStart = time.Second

// uptime returns for how many milliseconds the container has run, at least 1; 0 = not known.
func (cfg *Config) uptime() int {
	if cfg.Started.IsZero() {
		return 0
	}
	return int(max(1, time.Since(cfg.Started).Milliseconds()))
}

// arrival describes the rank of a complete roster that registered last.
func (c *coordinator) arrival(members []Member) (a Arrival) {
	i := slices.IndexFunc(members, func(m Member) bool { return c.last != nil && m.ID == c.last.key })
	if i < 0 {
		return a
	}
	at := &c.last.events
	a = Arrival{Last: members[i].Display(), Wait: at.Reachable.Sub(c.n.begin)}
	if before := at.Started.Sub(c.n.begin); !at.Started.IsZero() && before >= shortStart {
		a.Started = min(before, a.Wait)
	}
	return a
}

// Attrs returns the attributes of a log record: last, and last_started unless the container of that rank started early.
func (a Arrival) Attrs() (attrs []any) {
	if a.Last == "" {
		return nil
	}
	attrs = append(attrs, "last", a.Last)
	if a.Started > 0 {
		attrs = append(attrs, "last_started", a.Started.Round(time.Millisecond))
	}
	return attrs
}

// Arrived says in one sentence that all ranks are present after waiting for that time, and which one came last:
// "all 64 present after 41 s; last: worker-7, 38 s of it before its container started". Only rank 0 knows the last one.
func (r *Roster) Arrived(after time.Duration) string {
	a := r.Arrival
	if a.Last != "" {
		after = a.Wait
	}
	s := fmt.Sprintf("all %d present after %s", len(r.Members), joblog.Seconds(after))
	if a.Last != "" && a.Wait >= shortStart {
		s += "; last: " + a.Last
		if a.Started > 0 {
			s += fmt.Sprintf(", %s of it before its container started", joblog.Seconds(a.Started))
		}
	}
	return s
}
