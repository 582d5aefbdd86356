package launch

import (
	"log/slog"
	"slices"
	"sync"
)

// Found is what a host says of its launchers, as [Identify] returns it; "" where it has not said it.
type Found struct{ Host, Launchers string }

// Versions compares the launchers of rank 0 with those of the other ranks, whose daemons may not understand each other
// if they differ. The answers may come in any order, and after the launch.
type Versions struct {
	mu       sync.Mutex
	awaiting bool    // rank 0's own launcher has not answered yet
	early    []Found // of the ranks whose launchers have
	own      Found
	warned   []string // what differs and was logged
}

// Start says what is known of this host before the launch.
func (v *Versions) Start(own Found) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.own = own
}

// Await says that the launcher of this host answers late.
func (v *Versions) Await() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.awaiting = true
}

// Awaited reports whether the launcher of this host has yet to answer.
func (v *Versions) Awaited() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.awaiting
}

// Own takes the answer of this host, and compares the answers before it with it.
func (v *Versions) Own(own Found, log *slog.Logger) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.awaiting = false
	v.own = own
	for _, f := range v.early {
		v.compare(f, log)
	}
	v.early = nil
}

// Late compares an answer that was not known in time for [CheckVersions], as soon as this host's is known too.
func (v *Versions) Late(f Found, log *slog.Logger) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.awaiting {
		v.early = append(v.early, f)
		return
	}
	v.compare(f, log)
}

// compare warns once of launchers that are the same as each other: many may come late. The caller holds the lock.
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

// CheckVersions compares the answers of all ranks in rank order before the launch. It logs a difference, or with strict
// returns it as the reason why nothing is launched. Where the first host has to have a launcher, needed says so.
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
