package probe

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Metrics are the numbers about this container and its job.
type Metrics struct {
	Version    string
	Started    time.Time // this container
	Phase      string
	Phases     []string // all of them
	PhaseBegan time.Time
	Steps      map[string]float64 // seconds from the start of this container to the end of each step of the launch
	Ready      bool
	Ranks      map[string]int // by state; nil = not known here
	Restarts   int
	Sessions   int  // of the SSH server
	ExitStatus *int // of the job; nil = it has not ended
}

// text returns the metrics in the text format of Prometheus.
func (m *Metrics) text() string {
	var b strings.Builder
	metric := func(name, kind, help string) {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
	}
	sample := func(name, label, value string, n float64) {
		if label != "" {
			name += "{" + label + `="` + escape(value) + `"}`
		}
		b.WriteString(name + " " + strconv.FormatFloat(n, 'f', -1, 64) + "\n")
	}
	one := func(name, kind, help string, n float64) {
		metric(name, kind, help)
		sample(name, "", "", n)
	}

	metric("paiinit_info", "gauge", "Always 1; the version of paiinit.")
	sample("paiinit_info", "version", m.Version, 1)
	one("paiinit_start_time_seconds", "gauge", "Unix time at which this container started.", unix(m.Started))
	metric("paiinit_phase", "gauge", "1 for the phase in which the job is, 0 for the others.")
	for _, phase := range m.Phases {
		sample("paiinit_phase", "phase", phase, truth(phase == m.Phase))
	}
	one("paiinit_phase_start_time_seconds", "gauge", "Unix time at which this phase began.", unix(m.PhaseBegan))
	if len(m.Steps) > 0 {
		metric("paiinit_launch_step_seconds", "gauge",
			"Seconds from the start of this container to the end of each step of the last launch.")
		for _, step := range slices.Sorted(maps.Keys(m.Steps)) {
			sample("paiinit_launch_step_seconds", "step", step, m.Steps[step])
		}
	}
	one("paiinit_ready", "gauge", "1 if all ranks run their command and it can be used, as /readyz says.",
		truth(m.Ready))
	if m.Ranks != nil {
		metric("paiinit_ranks", "gauge", "Ranks by state; only rank 0 has this metric.")
		for _, state := range slices.Sorted(maps.Keys(m.Ranks)) {
			sample("paiinit_ranks", "state", state, float64(m.Ranks[state]))
		}
	}
	one("paiinit_restarts_total", "counter", "Restarts of the job in place.", float64(m.Restarts))
	one("paiinit_ssh_sessions", "gauge", "Sessions of the SSH server of this container.", float64(m.Sessions))
	if m.ExitStatus != nil {
		one("paiinit_exit_status", "gauge", "Exit status of the job, once it is known.", float64(*m.ExitStatus))
	}
	return b.String()
}

// unix returns a time in seconds, to the millisecond.
func unix(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}

func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// escape writes the value of a label.
func escape(value string) string {
	return strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(value)
}
