// Package restart decides whether a job that has ended runs again, and tells people and programs about it.
//
// A generation is one launch of the job on all ranks. Rank 0 keeps a [History]: it adds how each generation ended and
// gets a [Decision]. The other ranks get the encoded history, so that all ranks tell the same, and so that a successor
// of rank 0 can go on from it.
//
// The package is arithmetic and text: it starts nothing, asks for nothing, and gets the time from its caller.
package restart

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Unlimited as a number of restarts means that there is no limit.
const Unlimited = -1

// Causes are the causes after which a job is restarted.
type Causes string

// The values of --restart-on.
const (
	OnAny  Causes = "any"
	OnLost Causes = "lost" // only after a rank was lost
)

// Policy says how often, after what and how soon a job is restarted.
type Policy struct {
	Restarts int // allowed number; 0 = restarts are off
	On       Causes
	NotOn    []int // statuses after which the job is not restarted; 75 includes the loss of a rank
	// Reset is how long a generation must run so that Restarts and Backoff start anew; 0 = they never do.
	Reset time.Duration

	// CrashCount generations in a row are a crash loop if each ended with the same status, and sooner than CrashWindow
	// after its launch; if ranks were lost, it must have been the same rank each time. 0 = never.
	CrashCount  int
	CrashWindow time.Duration

	// Stalls is the number of generations in a row without progress after which the job is not restarted; 0 = never.
	Stalls int

	Backoff    time.Duration // before the second restart, doubled before each further one; the first is immediate
	MaxBackoff time.Duration
}

// Defaults returns the policy of a job whose flags do not say otherwise. Its restarts are off.
func Defaults() Policy {
	return Policy{
		On: OnAny, Reset: 10 * time.Minute,
		CrashCount: 3, CrashWindow: 10 * time.Second,
		Stalls:  3,
		Backoff: time.Second, MaxBackoff: time.Minute,
	}
}

// ParseRestarts reads a number of restarts, or "unlimited".
func ParseRestarts(text string) (int, error) {
	if text == "unlimited" {
		return Unlimited, nil
	}
	n, ok := number(text, maxCount)
	if !ok {
		return 0, fmt.Errorf("%q is neither a number of restarts nor unlimited", text)
	}
	return n, nil
}

// ParseStatuses reads a list of exit statuses, such as "2,93", which may have duplicates; "" = none.
func ParseStatuses(list string) ([]int, error) {
	if list == "" {
		return nil, nil
	}
	var statuses []int
	for word := range strings.SplitSeq(list, ",") {
		word = strings.TrimSpace(word)
		status, ok := number(word, maxStatus)
		switch {
		case !ok:
			return nil, fmt.Errorf("%q is not an exit status, a number from 1 to %d", word, maxStatus)
		case status == 0:
			return nil, fmt.Errorf("%q is the status of success, after which no job is restarted", word)
		}
		statuses = append(statuses, status)
	}
	return statuses, nil
}

// number reads a number of digits only, from 0 to most.
func number(text string, most int) (n int, ok bool) {
	n, err := strconv.Atoi(text)
	return n, err == nil && n <= most && text[0] != '+' && text[0] != '-'
}

// delay returns the back-off before a restart, counted from 1.
func (p Policy) delay(restart int) time.Duration {
	if restart <= 1 {
		return 0
	}
	d := min(p.Backoff, p.MaxBackoff)
	for i := 2; i < restart && d > 0 && d < p.MaxBackoff; i++ {
		if d > p.MaxBackoff/2 { // doubling it could overflow
			return p.MaxBackoff
		}
		d *= 2
	}
	return max(0, d)
}
