package rendezvous

import (
	"fmt"
	"slices"
	"time"
)

// Arrival says how long rank 0 waited for the other ranks, all by the clock of rank 0.
type Arrival struct {
	Last    string        // alias of the rank that came last
	Wait    time.Duration // from the start of rank 0's node until Last had registered
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

// noteRegistered stores when a rank registered and when its container had started, by this container's clock alone.
func (c *coordinator) noteRegistered(t *target, r *Record) {
	c.last, t.arrived, t.started, t.dialled = t, time.Now(), time.Time{}, attempts{}
	if r.Uptime > 0 {
		t.started = t.arrived.Add(-time.Duration(r.Uptime) * time.Millisecond)
	}
}

// arrival describes the rank of a complete roster that registered last.
func (c *coordinator) arrival(members []Member) (a Arrival) {
	i := slices.IndexFunc(members, func(m Member) bool { return c.last != nil && m.ID == c.last.key })
	if i < 0 {
		return a
	}
	a = Arrival{Last: members[i].Display(), Wait: c.last.arrived.Sub(c.n.begin)}
	if before := c.last.started.Sub(c.n.begin); !c.last.started.IsZero() && before >= shortStart {
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
	s := fmt.Sprintf("all %d present after %s", len(r.Members), seconds(after))
	if a.Last != "" && a.Wait >= shortStart {
		s += "; last: " + a.Last
		if a.Started > 0 {
			s += fmt.Sprintf(", %s of it before its container started", seconds(a.Started))
		}
	}
	return s
}

// seconds writes a duration for people: "0.3 s", "41 s".
func seconds(d time.Duration) string {
	if d = d.Round(100 * time.Millisecond); d < 10*time.Second && d%time.Second != 0 {
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return fmt.Sprintf("%.0f s", d.Seconds())
}
