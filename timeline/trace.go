package timeline

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// event is one event of the Trace Event Format, which Perfetto and chrome://tracing read: "X" is a complete event with
// a duration, "i" an instant, "M" metadata. Times are in microseconds.
type event struct {
	Name  string         `json:"name"`
	Cat   string         `json:"cat,omitempty"`
	Phase string         `json:"ph"`
	TS    int64          `json:"ts"`
	Dur   *int64         `json:"dur,omitempty"`
	PID   int            `json:"pid"`
	TID   int            `json:"tid"`
	Scope string         `json:"s,omitempty"`
	Color string         `json:"cname,omitempty"`
	Args  map[string]any `json:"args,omitempty"`
}

// trace is the object format of a trace.
type trace struct {
	Unit   string            `json:"displayTimeUnit"`
	Events []event           `json:"traceEvents"`
	Other  map[string]string `json:"otherData"`
}

// WriteTrace writes the timeline as Chrome trace JSON, with a process for each rank. 0 is the first sign of the first
// container.
func (t *Timeline) WriteTrace(w io.Writer) error {
	origin := t.origin()
	since := func(at time.Time) int64 { return at.Sub(origin).Microseconds() }
	out := trace{Unit: "ms", Events: []event{}, Other: map[string]string{
		"origin": origin.UTC().Format(time.RFC3339Nano), "critical_path": t.Critical(),
	}}
	for i := range t.Ranks {
		r := &t.Ranks[i]
		const thread = 1
		process := i + 1 // 0 is the kernel's idle process to a viewer
		title := fmt.Sprintf("rank %d %s", r.Rank, r.Name)
		if r.Rank < 0 {
			title = "rank ? " + r.Name
		}
		meta := func(name string, args map[string]any) {
			out.Events = append(out.Events, event{Name: name, Phase: "M", PID: process, TID: thread, Args: args})
		}
		meta("process_name", map[string]any{"name": title})
		meta("process_sort_index", map[string]any{"sort_index": i})
		meta("thread_name", map[string]any{"name": "container"})
		for _, g := range t.stages(r) {
			k := kinds()[g.kind]
			from, to := since(g.from), since(g.to)
			dur := max(0, to-from)
			e := event{
				Name: k.name, Cat: "launch", Phase: "X", TS: from, Dur: &dur, PID: process, TID: thread, Color: k.color,
			}
			if r.Reason != "" {
				e.Args = map[string]any{"reason": r.Reason}
			}
			out.Events = append(out.Events, e)
		}
		for _, point := range []struct {
			name string
			at   time.Time
		}{
			{"name resolved", r.Resolved}, {"committed", r.Committed}, {"first session", r.Session},
			{cmp.Or(map[bool]string{true: "lost"}[r.Lost], "ended"), r.Ended},
		} {
			if !point.at.IsZero() {
				out.Events = append(out.Events, event{
					Name: point.name, Cat: "launch", Phase: "i", TS: since(point.at), PID: process, TID: thread,
					Scope: "t",
				})
			}
		}
	}
	return json.NewEncoder(w).Encode(out)
}
