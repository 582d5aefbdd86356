package restart

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/paiinit/paiinit/joblog"
)

// Limits of Final. The termination message has 4,096 bytes, also for the last lines of the command's output.
const (
	listedFirst = 3
	listedLast  = 5
	maxListed   = 120 // bytes of a cause
)

// Final returns the reason of a job that has ended with this status for good. reason is that of its last end, in full;
// "" = its cause. A failure is followed by why the job is not restarted, and by one line for each generation: the first
// and the last ones if there are many.
func (h *History) Final(status int, reason string) string {
	last := h.last()
	if last == nil {
		return reason
	}
	if reason == "" {
		reason = last.Cause
	}
	count := h.counted()
	switch {
	case count != "" && status == 0:
		reason += ", after " + count
	case count != "":
		reason = "after " + count + ": " + reason
	}
	if status == 0 || last.Stopped {
		return reason
	}
	lines := []string{reason}
	usedUp := h.state.Of != Unlimited && h.state.Used >= h.state.Of // then the count says why
	if h.state.Why != "" && !usedUp {
		lines = append(lines, "not restarted: "+h.state.Why)
	}
	if h.state.Ends > 1 {
		lines = append(lines, h.list()...)
	}
	return strings.Join(lines, "\n")
}

// counted returns how many restarts there were, "" if there was none.
func (h *History) counted() string {
	switch {
	case h.state.Total == 0:
		return ""
	case h.state.Of == Unlimited, h.state.Used == 0:
		return plural(h.state.Total, "restart")
	case h.state.Total > h.state.Used:
		return fmt.Sprintf("%d of %d restarts (%d since the first launch)", h.state.Used, h.state.Of, h.state.Total)
	}
	return fmt.Sprintf("%d of %d restarts", h.state.Used, h.state.Of)
}

// list returns one line for each generation, the last one included.
func (h *History) list() (lines []string) {
	for i, e := range h.state.Kept {
		if i >= listedFirst && i < len(h.state.Kept)-listedLast {
			if i == listedFirst {
				lines = append(lines, plural(h.state.Ends-listedFirst-listedLast, "more generation"))
			}
			continue
		}
		ran := "was not launched"
		if e.Ran > 0 {
			ran = "ran " + joblog.Seconds(e.Ran)
		}
		lines = append(lines, fmt.Sprintf("generation %d %s: %s", e.Generation, ran, clean(e.Cause, maxListed)))
	}
	return lines
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// RestartingAttrs returns the attributes of the log record "restarting the job", nil if the job does not run again.
// The container that must come back is that of the first cause, if it was lost.
func (h *History) RestartingAttrs() []any {
	last := h.last()
	if last == nil || h.state.Why != "" {
		return nil
	}
	waiting := ""
	if last.Kind == Lost {
		waiting = last.Name
	}
	text := "restarting the job"
	attrs := []any{"restart", h.state.Used}
	if h.state.Delay > 0 {
		text += " in " + joblog.Seconds(h.state.Delay)
	}
	text += " (restart " + strconv.Itoa(h.state.Used)
	if h.state.Of != Unlimited {
		attrs = append(attrs, "of", h.state.Of)
		text += " of " + strconv.Itoa(h.state.Of)
	}
	attrs = append(attrs, "cause", last.Cause, "ran", last.Ran)
	text += "): " + last.Cause
	if last.Ran > 0 {
		text += "; the job ran " + joblog.Seconds(last.Ran)
	}
	if waiting != "" {
		attrs = append(attrs, "waiting", waiting)
		text += "; waiting for " + waiting
	}
	if h.state.Delay > 0 {
		attrs = append(attrs, "delay", h.state.Delay)
	}
	return append(attrs, joblog.Text(text))
}

// ResumedAttrs returns the attributes of the log record "the job runs again", nil before [History.Resumed].
func (h *History) ResumedAttrs() []any {
	last := h.last()
	if last == nil || last.Next == 0 {
		return nil
	}
	var steps []string
	for _, s := range []struct {
		name string
		took time.Duration
	}{{"clear", last.Clear}, {"rejoin", last.Rejoin}, {"commit", last.Commit}} {
		if s.took > 0 {
			steps = append(steps, s.name+" "+joblog.Seconds(s.took))
		}
	}
	text := fmt.Sprintf("the job runs again after %s (restart %d, generation %d)", joblog.Seconds(last.Downtime),
		last.Restart, last.Next)
	if len(steps) > 0 {
		text += ": " + strings.Join(steps, ", ")
	}
	return []any{
		"restart", last.Restart, "generation", last.Next, "downtime", last.Downtime, "clear", last.Clear,
		"rejoin", last.Rejoin, "commit", last.Commit, joblog.Text(text),
	}
}

// Restart is one restart in the JSON of a status. Fields are added, never changed.
type Restart struct {
	Restart    int     `json:"restart"`    // counted as in Decision.Number
	Generation int     `json:"generation"` // that it began; 0 = the job does not run again yet
	Cause      string  `json:"cause"`      // why the generation before ended
	Kind       string  `json:"kind"`
	Rank       int     `json:"rank"` // of the cause; -1 = none
	Name       string  `json:"name"`
	Status     int     `json:"status"`
	Ran        float64 `json:"ran_s"` // from the last launch to the end
	Downtime   float64 `json:"downtime_s"`
	Clear      float64 `json:"clear_s"`
	Rejoin     float64 `json:"rejoin_s"`
	Commit     float64 `json:"commit_s"`
}

// Restarts returns the restarts, not nil: the first and the last ones if there are many.
func (h *History) Restarts() []Restart {
	all := []Restart{}
	for _, e := range h.state.Kept {
		if e.Restart == 0 {
			continue
		}
		all = append(all, Restart{
			Restart: e.Restart, Generation: e.Next, Cause: e.Cause, Kind: string(e.Kind), Rank: e.Rank,
			Name:   e.Name,
			Status: e.Status, Ran: seconds(e.Ran), Downtime: seconds(e.Downtime), Clear: seconds(e.Clear),
			Rejoin: seconds(e.Rejoin), Commit: seconds(e.Commit),
		})
	}
	return all
}

// seconds rounds to microseconds, as the log does.
func seconds(d time.Duration) float64 { return math.Round(d.Seconds()*1e6) / 1e6 }

// Variable is an environment variable of the command.
type Variable struct{ Name, Value string }

// Variables returns the variables by which the command of this generation learns of the restarts; none if restarts are
// off. oneProcess says that each rank has one process, which torchrun's name for the count fits. The values replace
// those of the container: a PAIINIT_RESTARTS there is the twin of --restarts.
func (h *History) Variables(generation int, oneProcess bool) []Variable {
	if h.policy.Restarts == 0 {
		return nil
	}
	restarts := strconv.Itoa(h.state.Total)
	vars := []Variable{{"PAIINIT_GENERATION", strconv.Itoa(generation)}, {"PAIINIT_RESTARTS", restarts}}
	if oneProcess {
		vars = append(vars, Variable{"TORCHELASTIC_RESTART_COUNT", restarts})
	}
	if last := h.last(); last != nil {
		vars = append(vars, Variable{"PAIINIT_RESTART_REASON", string(last.Kind)},
			Variable{"PAIINIT_PREVIOUS_STATUS", strconv.Itoa(last.Status)})
	}
	return vars
}
