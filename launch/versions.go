package launch

import (
	"log/slog"
	"slices"
	"sync"
	"time"
)

// Found holds the launchers of a host, as [Identify] returns them; "" if the host has not answered.
type Found struct{ Host, Launchers string }

// Versions compares the launchers of rank 0 with those of the other ranks, because daemons of different versions may
// not understand each other. Answers may arrive in any order, and after the launch.
type Versions struct {
	answer chan string // of this host; nil = it was not asked

	mu       sync.Mutex
	awaiting bool    // rank 0's own launcher has not answered yet
	early    []Found // answers of other ranks that arrived before rank 0's own
	own      Found
	warned   []string // the differing launchers that were logged
}

// Awaited reports whether the launcher of this host has not answered yet.
func (v *Versions) Awaited() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.awaiting
}

// Ask returns a function that runs query, which identifies the launchers of this host. Answer returns the result.
func (v *Versions) Ask(query func() string) (run func()) {
	answer := make(chan string, 1)
	v.answer = answer
	return func() { answer <- query() }
}

// Answer takes the answer of this host, and compares the earlier answers of other hosts with it. It returns "" if there
// is no query, and if the query takes too long: then Answer must be called again.
func (v *Versions) Answer(host string, tooLate <-chan time.Time, log *slog.Logger) (found string) {
	awaiting := false
	if v.answer != nil {
		select {
		case found = <-v.answer:
		case <-tooLate:
			awaiting = true
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.awaiting, v.own = awaiting, Found{host, found}
	if awaiting {
		return ""
	}
	for _, f := range v.early {
		v.compare(f, log)
	}
	v.early = nil
	return found
}

// Late compares an answer that came too late for [CheckVersions], at once or when this host's own answer is known.
func (v *Versions) Late(f Found, log *slog.Logger) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.awaiting {
		v.early = append(v.early, f)
		return
	}
	v.compare(f, log)
}

// compare warns once per set of differing launchers, because many ranks may answer late. The caller holds the lock.
func (v *Versions) compare(f Found, log *slog.Logger) {
	differ := Differ([]string{v.own.Host, f.Host}, []string{v.own.Launchers, f.Launchers}, false)
	if differ == "" || slices.Contains(v.warned, f.Launchers) {
		return
	}
	v.warned = append(v.warned, f.Launchers)
	warnDiffer(differ, log)
}

func warnDiffer(differ string, log *slog.Logger) {
	log.Warn(differ, "phase", "check", "hint", "--require-same-launcher makes this an error")
}

// CheckVersions compares the answers of all ranks in rank order before the launch. It logs a difference, or if strict
// returns it as the reason for not launching. needed says that the first host must have a launcher.
func CheckVersions(all []Found, strict, needed bool, log *slog.Logger) (refused string) {
	var hosts, found []string
	for i, f := range all {
		if f.Launchers != "" || i == 0 || strict {
			hosts, found = append(hosts, f.Host), append(found, f.Launchers)
		}
	}
	differ := Differ(hosts, found, strict)
	switch {
	case differ == "" && strict && needed && len(found) > 1 && !Known(found[0]):
		return "--require-same-launcher: " + hosts[0] + " has no launcher of a known version"
	case differ == "" || strict:
		return differ
	}
	warnDiffer(differ, log)
	return ""
}
