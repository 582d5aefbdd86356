package rendezvous

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// These errors say what is wrong with a container that answers in place of the dialled one. Config.Dial wraps them.
var (
	ErrOtherSecret    = errors.New("has another secret")
	ErrOtherVersion   = errors.New("has another version of paiinit")
	ErrOtherJob       = errors.New("belongs to another job or attempt")
	ErrOtherContainer = errors.New("is another container of the job")
	ErrOtherProgram   = errors.New("is not paiinit")
)

// isElse reports whether another container than the dialled one answers.
func isElse(err error) bool { return isForeign(err) || errors.Is(err, ErrOtherContainer) }

// isForeign reports whether a container answers that is not of this job, as far as it can tell.
func isForeign(err error) bool { return isIncompatible(err) || errors.Is(err, ErrOtherJob) }

// isIncompatible reports whether a container with another secret or version answers.
func isIncompatible(err error) bool {
	return errors.Is(err, ErrOtherSecret) || errors.Is(err, ErrOtherVersion)
}

// nextPort returns the next port if another program or container has taken this one: Listen takes the next free port.
func nextPort(a netip.AddrPort, err error) (next netip.AddrPort, ok bool) {
	if !isElse(err) && !errors.Is(err, ErrOtherProgram) || a.Port() == math.MaxUint16 {
		return a, false
	}
	return netip.AddrPortFrom(a.Addr(), a.Port()+1), true
}

// Missing is a rank that has not come yet.
type Missing struct {
	Rank   int    `json:"rank"` // -1 = unknown
	Name   string `json:"name"` // "worker-3", or an address, or "a rank"
	Reason string `json:"reason"`

	incompatible error // error of the container that answered, if isIncompatible; nil = none
	proof        error // why waiting for it does not help; nil = it may
	tried        *tried

	alias, own string // of a rank that the environment does not list
}

// compare orders by rank; -1, unknown, comes last.
func (m Missing) compare(o Missing) int {
	return cmp.Or(cmp.Compare(uint(m.Rank), uint(o.Rank)), cmp.Compare(m.Name, o.Name))
}

// MissingError names the ranks that had not come at the deadline.
type MissingError struct {
	Present, Size int // Size 0 = only rank 0 knows
	Missing       []Missing
	Waited        time.Duration // of a rank that gave up; 0 = it still waits
	alone         bool          // rank 0 never connected: nothing is known of the other ranks
}

func (e *MissingError) Error() string {
	if e.Waited > 0 {
		return e.gaveUp()
	}
	if e.Size < 1 {
		return fmt.Sprintf("%d ranks are present; missing: %s", e.Present, Fold(e.Missing))
	}
	return fmt.Sprintf("%d of %d ranks are present; missing: %s", e.Present, e.Size, Fold(e.Missing))
}

// OtherSecret reports whether every missing rank answered with another secret, or rank 0 did and the others are silent:
// a retry does not help.
func (e *MissingError) OtherSecret() bool {
	return e.allIncompatible() && !e.OtherVersion()
}

// OtherVersion reports the same if some of them are of another version of paiinit, whose secret cannot be compared.
func (e *MissingError) OtherVersion() bool {
	other := func(m Missing) bool { return errors.Is(m.incompatible, ErrOtherVersion) }
	return e.allIncompatible() && slices.ContainsFunc(e.Missing, other)
}

func (e *MissingError) allIncompatible() bool {
	return len(e.Missing) > 0 && !slices.ContainsFunc(e.Missing, func(m Missing) bool { return m.incompatible == nil })
}

// Fold writes a list of missing ranks on one line. It writes equal reasons once and neighbours as a range:
// "worker-[3-5],worker-9 (never heard); ps-0 (name does not resolve)". Reasons that differ only in addresses and names
// count as equal; Fold writes these only for a reason of a single rank.
func Fold(missing []Missing) string {
	var parts []string
	for _, same := range byReason(missing, impersonal) {
		reason := same[0].Reason
		if len(same) > 1 {
			reason = impersonal(reason)
		}
		parts = append(parts, fmt.Sprintf("%s (%s)", foldNames(same), reason))
	}
	return strings.Join(parts, "; ")
}

// byReason groups ranks by what key makes of their reasons, in the order in which these come first.
func byReason(missing []Missing, key func(reason string) string) (groups [][]Missing) {
	at := map[string]int{}
	for _, m := range missing {
		k := key(m.Reason)
		i, ok := at[k]
		if !ok {
			i, at[k] = len(groups), len(groups)
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], m)
	}
	return groups
}

// impersonal removes from a reason what belongs to one rank: addresses, and the name that does not resolve.
func impersonal(reason string) string {
	words := strings.Fields(reason)
	out := words[:0]
	for i, w := range words {
		_, err := netip.ParseAddrPort(strings.TrimRight(w, ":,"))
		switch {
		case err != nil && (i == 0 || words[0] != "name" || i != 1):
			out = append(out, w)
		case strings.HasSuffix(w, ",") && len(out) > 0:
			out[len(out)-1] += ","
		}
	}
	return strings.Replace(strings.Join(out, " "), "heard by gossip from,", "heard by gossip,", 1)
}

// shorten makes a list that goes to many ranks: a long one has one entry per reason, with all the names.
func shorten(missing []Missing) []Missing {
	const long, most = 32, 1024
	if len(missing) <= long {
		return missing
	}
	var out []Missing
	groups := byReason(missing, func(reason string) string { return reason })
	for _, same := range groups[:min(long, len(groups))] {
		name := foldNames(same)
		if len(name) > most {
			name = fmt.Sprintf("%s... (%d ranks)", name[:most], len(same))
		}
		out = append(out, Missing{Rank: -1, Name: name, Reason: same[0].Reason, incompatible: same[0].incompatible})
	}
	return out
}

func foldNames(missing []Missing) string {
	names := make([]string, len(missing))
	for i, m := range missing {
		names[i] = m.Name
	}
	return strings.Join(FoldNames(names), ",")
}

// FoldNames replaces neighbours among the names of ranks by ranges.
func FoldNames(names []string) (out []string) {
	for len(names) > 0 {
		name, run := names[0], 1
		if nth, ok := sequence(name); ok {
			for run < len(names) && names[run] == nth(run, run) {
				run++
			}
			name = nth(0, run-1)
		}
		out = append(out, name)
		names = names[run:]
	}
	return out
}

// sequence returns a function that writes the names which follow a name by their numbers, from the first to the last,
// as a range: "worker-[3-5]", and with the container's own name "train-[3-5] (worker-[3-5])".
func sequence(name string) (nth func(first, last int) string, ok bool) {
	own, alias, paired := strings.Cut(strings.TrimSuffix(name, ")"), " (")
	n, ok := cutNumber(own)
	if !ok || !paired {
		return n.write, ok
	}
	other, ok := cutNumber(alias)
	return func(first, last int) string { return n.write(first, last) + " (" + other.write(first, last) + ")" }, ok
}

// numbered is a name that ends with a number, such as worker-3 or node007.
type numbered struct {
	stem  string
	from  int
	width int // of the number with its zeros; 0 = it has none in front
}

// write writes the names from the first to the last, counted from the name itself.
func (n numbered) write(first, last int) string {
	number := func(i int) string { return fmt.Sprintf("%0*d", n.width, n.from+i) }
	if first == last {
		return n.stem + number(first)
	}
	return fmt.Sprintf("%s[%s-%s]", n.stem, number(first), number(last))
}

// cutNumber cuts the number from the end of a name. An address does not end with a number in this sense.
func cutNumber(name string) (n numbered, ok bool) {
	n.stem = strings.TrimRight(name, "0123456789")
	digits := name[len(n.stem):]
	if n.stem == "" || strings.ContainsAny(n.stem[len(n.stem)-1:], ".:]") || len(digits) > 9 {
		return n, false
	}
	if strings.HasPrefix(digits, "0") && len(digits) > 1 {
		n.width = len(digits)
	}
	var err error
	n.from, err = strconv.Atoi(digits)
	return n, err == nil
}

var errSilent = errors.New("rank 0 answers, but has not connected back to this container")

// missing lists the ranks that are absent, by what this rank knows.
func (n *Node) missing() []Missing {
	if n.phase == Running || n.phase == Ended {
		return nil
	}
	if n.lead == nil {
		return n.up.missing()
	}
	return n.lead.missing()
}

// missing lists the ranks that are not registered.
func (c *coordinator) missing() []Missing {
	if c.fills() {
		return c.vacant()
	}
	var out []Missing
	for _, p := range c.n.cfg.Peers {
		if t := c.targets[p.ID]; t != nil && t.rec == nil {
			out = append(out, c.missingAt(t, p.Rank, p.display()))
		}
	}
	// Then the ranks that the environment does not list: the containers that answered at the seeds' addresses, then the
	// number of the rest.
	count := c.n.cfg.Size - c.present() - len(out)
	for _, k := range slices.Sorted(maps.Keys(c.targets)) {
		if t := c.targets[k]; t.peer == nil && t.rec == nil && count != 0 {
			out = append(out, c.missingAt(t, -1, c.nameOf(t)))
			count--
		}
	}
	if gaps := c.gaps(count); gaps != nil {
		out = append(out, gaps...)
	} else if count > 0 {
		name := "1 rank"
		if count > 1 {
			name = fmt.Sprintf("%d ranks", count)
		}
		out = append(out, Missing{Rank: -1, Name: name, Reason: c.n.find.seedReason()})
	}
	if len(out) == 0 {
		return c.unsettled()
	}
	return out
}

func (c *coordinator) missingAt(t *target, rank int, name string) Missing {
	host := ""
	if t.peer != nil {
		host = t.peer.Host
	}
	m := Missing{Rank: rank, Name: name, Reason: c.reason(t), incompatible: t.incompatible, proof: t.foreign.proof()}
	if m.tried = t.dialled.tried(c.n, host, t.begun, t.err, t.incompatible); m.tried != nil {
		m.tried.calls = t.isBlocked(c.n.judged())
	}
	if t.peer == nil {
		m.alias, m.own = strings.TrimPrefix(t.key, "@"), t.own
	}
	return m
}

// missing lists the ranks that rank 0 told, or what gossip and calls have found.
func (u *uplink) missing() []Missing {
	if u.wire != nil && u.told != nil {
		return u.told.Missing
	}
	var out []Missing
	var incompatible error
	if u.wire == nil {
		incompatible = u.incompatible
		m := Missing{Rank: 0, Name: "rank 0", Reason: "never heard", incompatible: incompatible}
		host := ""
		if zero := u.n.cfg.peerZero(); zero != nil {
			m.Name, host = zero.display(), zero.Host
		}
		m.tried = u.dialled.tried(u.n, host, u.n.begin, u.lookErr, incompatible)
		switch {
		case incompatible != nil && !isIncompatible(u.lookErr):
			m.Reason = fmt.Sprintf("%s; now %s", explain(u.incompatible), explain(u.lookErr))
		case u.whyBlocked() != nil:
			m.Reason, m.tried = u.whyBlocked().Error(), nil
		case u.lookErr != nil:
			m.Reason = explain(u.lookErr)
		case len(u.n.cfg.Seeds) > 0:
			m.Reason = u.n.find.seedReason()
		}
		out = append(out, m)
	}
	for _, p := range u.n.cfg.Peers {
		if _, ok := u.n.find.heard[p.ID]; !ok && p.Rank != 0 {
			// Gossip needs the secret, so another secret explains why nothing is heard.
			out = append(out, Missing{
				Rank: p.Rank, Name: p.display(), Reason: "not heard by gossip", incompatible: incompatible,
			})
		}
	}
	return out
}

// stillExamines is why the launch waits for a rank that is present.
const stillExamines = "it is present, but still examines its devices"

// lookers lists the ranks that are present and have not told their fabric yet.
func (c *coordinator) lookers() (out []Missing) {
	if c.n.looking {
		out = append(out, Missing{Rank: c.n.self.Rank, Name: c.n.current.display(), Reason: c.n.examines()})
	}
	for _, t := range c.targets {
		if t.rec != nil && t.looking {
			out = append(out, Missing{Rank: t.rec.Rank, Name: t.rec.display(), Reason: t.examines()})
		}
	}
	slices.SortFunc(out, Missing.compare)
	return out
}

func (n *Node) missingError() *MissingError {
	e := &MissingError{Size: n.cfg.Size, Missing: n.missing()}
	switch {
	case n.lead != nil:
		late := n.lead.lookers()
		e.Present, e.Missing = n.lead.present()-len(late), append(e.Missing, late...)
		if n.lead.fills() {
			e.Size = n.lead.ranks()
			e.Present = e.Size - len(e.Missing)
		}
		if len(e.Missing) == 0 {
			e.Missing = n.lead.unproven()
		}
	case n.up.wire != nil && n.up.told != nil:
		e.Present = n.up.told.Present
	default:
		e.Present = 1
		for id, r := range n.find.heard {
			is := func(m Missing) bool { return m.Name == id || m.Rank == r.Rank && r.Rank >= 0 }
			if !slices.ContainsFunc(e.Missing, is) {
				e.Present++
			}
		}
	}
	return e
}

func (c *coordinator) reason(t *target) string {
	r, heard := c.n.find.heard[t.key]
	switch {
	case t.isBlocked(c.n.judged()):
		return t.blockedReason()
	case t.incompatible != nil && !isIncompatible(t.err):
		return fmt.Sprintf("%s; now %s", explain(t.incompatible), explain(t.err))
	case t.err != nil && heard:
		return fmt.Sprintf("heard by gossip from %v, but %s", r.Addr, explain(t.err))
	case t.err != nil:
		return explain(t.err)
	case heard:
		return fmt.Sprintf("heard by gossip from %v, not connected yet", r.Addr)
	}
	return "never heard"
}

func (f *finder) seedReason() string {
	var parts []string
	for i, s := range f.seeds {
		name := f.n.cfg.Seeds[i].Host
		switch {
		case s.err != nil:
			parts = append(parts, explain(s.err))
		case len(s.addrs) == 1:
			parts = append(parts, fmt.Sprintf("%s has 1 address", name))
		case s.told:
			parts = append(parts, fmt.Sprintf("%s has %d addresses", name, len(s.addrs)))
		}
	}
	if len(parts) == 0 {
		return "never heard"
	}
	return "never heard: " + strings.Join(parts, ", ")
}

// explain turns the error of a dial into text for people.
func explain(err error) string {
	if err == nil {
		return "no reason is known"
	}
	dns, isDNS := errors.AsType[*net.DNSError](err)
	var at string
	head, _, _ := strings.Cut(err.Error(), ": ")
	if ap, perr := netip.ParseAddrPort(head); perr == nil {
		at = ap.String() + ": "
	}
	switch {
	case isElse(err), errors.Is(err, errSilent):
		return err.Error()
	case isDNS && dns.IsNotFound:
		return fmt.Sprintf("name %s does not resolve", dns.Name)
	case isDNS:
		return fmt.Sprintf("name %s cannot be resolved: %s", dns.Name, dns.Err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return at + "connection refused"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return at + "no route to host"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, io.EOF):
		return at + "connection closed by the other side"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded),
		errors.Is(err, syscall.ETIMEDOUT):
		return at + "no answer"
	}
	return err.Error()
}
