package launch

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"sort"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Rank is a rank of a job in which every rank runs the command.
type Rank struct {
	Rank   int
	Role   string
	Name   string
	Needed bool // the job succeeds if the commands of all needed ranks end with 0
}

// UntilRank0 stands in place of a list of roles and says that the job ends with rank 0's command.
const UntilRank0 = "rank0"

// Needed returns for each rank, given the roles of all, whether its command must end with 0 before the others are
// stopped. until is UntilRank0, or "a,b" for roles in lower case; "" means all ranks but parameter servers and
// evaluators, which never end by themselves. If this selects no rank, all are needed.
func Needed(roles []string, until string) []bool {
	named := strings.Split(until, ",")
	needed := make([]bool, len(roles))
	for rank, role := range roles {
		switch until {
		case UntilRank0:
			needed[rank] = rank == 0
		case "":
			needed[rank] = !Serves(role)
		default:
			needed[rank] = slices.Contains(named, strings.ToLower(role))
		}
	}
	if !slices.Contains(needed, true) {
		return slices.Repeat([]bool{true}, len(roles))
	}
	return needed
}

// End describes how the command of one rank ended.
type End struct {
	Rank    int
	Name    string
	Outcome Outcome
	At      time.Time     // on the same clock for all ranks
	Error   time.Duration // the maximum error of At, in both directions
	Stopped bool          // the command was told to end before it ended
}

// Stop is a rank's request to end the job, or the order to all ranks to end their commands.
type Stop struct {
	Name   string // of the rank
	Signal int    // the signal that the rank got; 0 if none
	Reason string
}

// Loss is a rank that was lost while its command ran.
type Loss struct {
	Rank   int
	Name   string
	Reason string
}

func (l Loss) String() string {
	return named(l.Rank, l.Name) + " was lost: " + l.Reason
}

// named writes a rank with its name, which may have its own parentheses: "rank 2 (proj-worker-3, worker-2)".
func named(rank int, name string) string {
	name = strings.TrimSuffix(strings.Replace(name, " (", ", ", 1), ")")
	return fmt.Sprintf("rank %d (%s)", rank, name)
}

// Verdict judges a job in which every rank runs the command, from the events that reach rank 0. Its methods Ended, Lost
// and Stop take them in the order of arrival; the first event that ends the job makes its method return the only order
// to all ranks.
type Verdict struct {
	Ranks      []Rank // in rank order
	LostStatus int    // the job's exit status if a rank was lost, or did not report how its command ended
	// Leader says that a needed command that ends by itself decides, whatever has failed before: a command that ends
	// closes its connections first, at which its workers fail.
	Leader bool

	silent  map[int]bool // ranks that are lost, or have reported how their command ended
	zero    map[int]bool // ranks whose command ended with 0
	ends    []End
	lost    []Loss
	stop    *Stop     // the request, if it was the reason to end
	ordered time.Time // when all commands were told to end; zero if they were not
}

// Ordered reports whether all commands were told to end.
func (v *Verdict) Ordered() bool { return !v.ordered.IsZero() }

// order returns the order to end all commands, nil if it was given before.
func (v *Verdict) order(signal int, reason string, now time.Time) *Stop {
	if v.Ordered() {
		return nil
	}
	v.ordered = now
	return &Stop{Signal: signal, Reason: reason}
}

// Ended takes the end of a command. A failure ends all other commands, and so does the success of all needed ranks.
func (v *Verdict) Ended(e End, now time.Time) *Stop {
	v.silent = with(v.silent, e.Rank)
	v.ends = append(v.ends, e)
	if e.Outcome.Status != 0 {
		return v.order(0, e.Outcome.Reason, now)
	}
	v.zero = with(v.zero, e.Rank)
	unmet := func(r Rank) bool { return !v.zero[r.Rank] }
	if slices.ContainsFunc(v.needed(), unmet) || len(v.Running()) == 0 {
		return nil
	}
	return v.order(0, v.success(), now)
}

// Lost takes the loss of a rank, which ends all other commands. news is false if the loss was known or does not matter.
func (v *Verdict) Lost(l Loss, now time.Time) (order *Stop, news bool) {
	known := func(r Rank) bool { return r.Rank == l.Rank }
	if v.silent[l.Rank] || !slices.ContainsFunc(v.Ranks, known) {
		return nil, false
	}
	v.silent = with(v.silent, l.Rank)
	v.lost = append(v.lost, l)
	return v.order(0, l.String(), now), true
}

// Stop takes a rank's request to end the job.
func (v *Verdict) Stop(s Stop, now time.Time) *Stop {
	order := v.order(s.Signal, s.Reason, now)
	if order != nil {
		v.stop = &s
	}
	return order
}

func with(ranks map[int]bool, rank int) map[int]bool {
	if ranks == nil {
		ranks = make(map[int]bool)
	}
	ranks[rank] = true
	return ranks
}

// Running returns the names of the ranks that have not reported how their command ended, and still may.
func (v *Verdict) Running() (names []string) {
	for _, r := range v.Ranks {
		if !v.silent[r.Rank] {
			names = append(names, r.Name)
		}
	}
	return names
}

func (v *Verdict) needed() []Rank {
	return slices.DeleteFunc(slices.Clone(v.Ranks), func(r Rank) bool { return !r.Needed })
}

// own reports whether a command ended by itself: before the order, or without it. It may have ended just before the
// signal reached it.
func (v *Verdict) own(e End) bool {
	return !e.Stopped || !v.Ordered() || e.At.Add(e.Error).Before(v.ordered)
}

// succeeded reports whether every needed command ended with 0 by itself, and returns the last of them.
func (v *Verdict) succeeded() (last End, ok bool) {
	needed := make(map[int]bool)
	for _, r := range v.needed() {
		needed[r.Rank] = true
	}
	for _, e := range v.ends {
		if !needed[e.Rank] || e.Outcome.Status != 0 || !v.own(e) {
			continue
		}
		delete(needed, e.Rank)
		if e.At.After(last.At) {
			last = e
		}
	}
	return last, len(needed) == 0
}

// success says which commands made the job succeed.
func (v *Verdict) success() string {
	needed := v.needed()
	switch {
	case len(needed) == len(v.Ranks):
		return fmt.Sprintf("the commands of all %d ranks ended with status 0", len(v.Ranks))
	case len(needed) == 1:
		return fmt.Sprintf("the command of %s ended with status 0", named(needed[0].Rank, needed[0].Name))
	}
	var roles []string
	for _, r := range needed {
		roles = append(roles, r.Role)
	}
	slices.Sort(roles)
	return fmt.Sprintf("the commands of all ranks of %s ended with status 0", strings.Join(slices.Compact(roles), ", "))
}

// Unclear returns the ranks whose order of ending decides the outcome: the caller compares their clocks for Align. A
// command that was told to end is not among them: it still ran when it was told, and so ended after the order.
func (v *Verdict) Unclear() (ranks []int) {
	_, well := v.succeeded()
	failed := false
	for _, e := range v.ends {
		bad := e.Outcome.Status != 0 && v.own(e)
		if bad || well {
			ranks = append(ranks, e.Rank)
		}
		failed = failed || bad
	}
	if v.stop != nil || !failed || len(ranks) < 2 || well && v.Leader {
		return nil
	}
	return ranks
}

// Align corrects the time at which the command of a rank ended.
func (v *Verdict) Align(rank int, at time.Time, within time.Duration) {
	for i := range v.ends {
		if v.ends[i].Rank == rank {
			v.ends[i].At, v.ends[i].Error = at, within
		}
	}
}

// Outcome returns the first cause: a request to stop if it came first, a lost rank, or the command that failed first on
// aligned clocks. Commands that only followed the order to end do not count. Failures after all needed commands have
// ended with 0 do not count either.
func (v *Verdict) Outcome() Outcome {
	last, well := v.succeeded()
	failed := v.failed()
	before := func(e End) bool { return e.At.Add(e.Error).Before(last.At.Add(-last.Error)) }
	switch {
	case v.stop != nil:
		return v.stopped()
	case well && (v.Leader || !slices.ContainsFunc(failed, before)):
		o := Outcome{Reason: v.success()}
		if v.Ordered() {
			o.Reason += "; the others were stopped then"
		}
		return o
	case len(v.lost) > 0:
		o := Outcome{}
		if len(failed) > 0 {
			o = failed[0].Outcome
			o.Reason = "; " + o.Reason
		}
		o.Status, o.Reason, o.Own, o.Next = v.LostStatus, v.lost[0].String()+o.Reason, false, ""
		o.Hung = false
		return o
	case len(failed) > 0:
		o := failed[0].Outcome
		o.Reason += alsoFailed(failed)
		return o
	}
	return Outcome{Status: v.LostStatus, Reason: "some ranks did not report how their commands ended"}
}

// Blamed returns the rank that is the first cause of the outcome, and whether it was lost; -1 if there is none.
func (v *Verdict) Blamed() (rank int, lost bool) {
	failed := v.failed()
	switch {
	case v.stop != nil:
		return -1, false
	case len(v.lost) > 0:
		return v.lost[0].Rank, true
	case len(failed) > 0:
		return failed[0].Rank, false
	}
	return -1, false
}

// stopped returns the outcome of a job that ended at the request of a rank.
func (v *Verdict) stopped() Outcome {
	bad := func(e End) bool { return e.Outcome.Status != 0 }
	if len(v.ends) == len(v.Ranks) && !slices.ContainsFunc(v.ends, bad) { // all commands may have saved their work
		return Outcome{Reason: v.stop.Reason + "; the commands of all ranks ended with status 0", Stopped: true}
	}
	told := slices.DeleteFunc(slices.Clone(v.ends), func(e End) bool { return !e.Stopped || !bad(e) })
	if len(told) > 0 { // commands may answer a signal with a status of their own
		first := slices.MinFunc(told, byRank).Outcome
		first.Reason, first.Stopped, first.Next = v.stop.Reason+"; "+first.Reason, true, ""
		return first
	}
	return Outcome{Status: 128 + int(EndSignal(v.stop.Signal)), Reason: v.stop.Reason, Stopped: true}
}

// Limits for commands that fail at about the same time.
const (
	sameCause = 250 * time.Millisecond // a failure so soon after the first may have the same cause and is listed
	mostNamed = 8                      // such failures that are listed
	// noticeTime is how long paiinit may take on a busy machine to notice the end of a command; ends that are closer
	// together cannot be ordered by time alone. When a process exits, its peers lose their connections and may end
	// before it is reaped.
	noticeTime = 25 * time.Millisecond
)

// failed returns the commands that failed by themselves: the most likely cause first, then the others in the order in
// which they ended.
func (v *Verdict) failed() []End {
	var ends []End
	for _, e := range v.ends {
		if e.Outcome.Status != 0 && v.own(e) {
			ends = append(ends, e)
		}
	}
	sort.Slice(ends, func(a, b int) bool {
		return cmp.Or(ends[a].At.Compare(ends[b].At), byRank(ends[a], ends[b])) < 0
	})
	if len(ends) < 2 {
		return ends
	}
	upper := func(e End) time.Time { return e.At.Add(e.Error) }
	sure := slices.MinFunc(ends, func(a, b End) int { return upper(a).Compare(upper(b)) })
	noticed := func(e End, within time.Duration) bool {
		return !e.At.Add(-e.Error).After(upper(sure).Add(within))
	}
	// A command that complains about a lost connection lost it to a command that ended earlier, even if paiinit noticed
	// that end later.
	lost := regexp.MustCompile(lostConnection)
	complains := func(o Outcome) bool { return lost.MatchString(o.Reason) || lost.MatchString(o.Stderr) }
	accused := complains(sure.Outcome)
	first, least := 0, 0
	for i, e := range ends {
		n := consequenceSigns(e, ends, complains)
		possible := noticed(e, noticeTime) || accused && n < complaint && noticed(e, sameCause)
		if possible && (i == 0 || n < least) {
			first, least = i, n
		}
	}
	e := ends[first]
	return slices.Insert(slices.Delete(ends, first, first+1), 0, e)
}

// consequenceSigns returns how much the end of a command looks like the consequence of another rank's failure: most if
// its peers ended it or it complains about a connection, less if several commands ended with the same status.
func consequenceSigns(e End, ends []End, complains func(Outcome) bool) (signs int) {
	alike := func(o End) bool { return o.Rank != e.Rank && o.Outcome.Status == e.Outcome.Status }
	if slices.ContainsFunc(ends, alike) {
		signs++
	}
	// Libraries and launchers send these signals when another rank fails.
	byPeers := []int{128 + int(unix.SIGTERM), 128 + int(unix.SIGABRT), 128 + int(unix.SIGPIPE)}
	if slices.Contains(byPeers, e.Outcome.Status) || complains(e.Outcome) {
		signs += complaint
	}
	return signs
}

// complaint is the weight of a sign that another command ended first; it outweighs every other sign.
const complaint = 2

// lostConnection matches what commands print when they lose the connection to a peer.
const lostConnection = `(?i)connection (was )?(reset|closed|aborted|lost)|broken ?pipe|` +
	`(reset|closed) by (the )?(remote )?peer|remote (process|host) (has )?(exited|closed)|socket (was )?closed`

func byRank(a, b End) int { return a.Rank - b.Rank }

// alsoFailed lists the ranks that failed shortly after the first. Most often the first failure caused theirs, but time
// alone cannot prove it if paiinit noticed them at the same moment.
func alsoFailed(failed []End) string {
	var also []string
	for _, e := range failed[1:] {
		if d := e.At.Sub(failed[0].At); d <= sameCause {
			after := max(d, 0).Round(time.Millisecond)
			also = append(also, fmt.Sprintf("%s with %d after %v", named(e.Rank, e.Name), e.Outcome.Status, after))
		}
	}
	if len(also) == 0 {
		return ""
	}
	text := "\nother commands failed at about the same time: " + strings.Join(also[:min(mostNamed, len(also))], ", ")
	if more := len(also) - mostNamed; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
