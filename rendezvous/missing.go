package rendezvous

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// These errors say what is wrong with a container that answers in place of the dialled one. Config.Dial wraps them.
var (
	ErrOtherSecret    = errors.New("has another secret")
	ErrOtherVersion   = errors.New("is another version of paiinit")
	ErrOtherJob       = errors.New("belongs to another job or attempt")
	ErrOtherContainer = errors.New("is another container of the job")
	ErrOtherProgram   = errors.New("is not paiinit")
)

// isElse reports whether another container than the dialled one answers.
func isElse(err error) bool {
	return isIncompatible(err) || errors.Is(err, ErrOtherJob) || errors.Is(err, ErrOtherContainer)
}

// isIncompatible reports whether a container answers with which this one cannot talk: its secret or its version
// differs.
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
}

// MissingError names the ranks that had not come at the deadline.
type MissingError struct {
	Present, Size int // Size 0 = only rank 0 knows
	Missing       []Missing
}

func (e *MissingError) Error() string {
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
	var reasons []string
	same := map[string][]Missing{}
	for _, m := range missing {
		r := impersonal(m.Reason)
		if _, ok := same[r]; !ok {
			reasons = append(reasons, r)
		}
		same[r] = append(same[r], m)
	}
	var parts []string
	for _, r := range reasons {
		names := make([]string, len(same[r]))
		for i, m := range same[r] {
			names[i] = m.Name
		}
		if len(names) == 1 {
			r = same[r][0].Reason
		}
		parts = append(parts, fmt.Sprintf("%s (%s)", foldNames(names), r))
	}
	return strings.Join(parts, "; ")
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
	at := map[string]int{}
	names := map[string][]string{}
	for _, m := range missing {
		if _, ok := at[m.Reason]; !ok && len(out) < long {
			at[m.Reason] = len(out)
			out = append(out, Missing{Rank: -1, Reason: m.Reason, incompatible: m.incompatible})
		}
		names[m.Reason] = append(names[m.Reason], m.Name)
	}
	for i := range out {
		out[i].Name = foldNames(names[out[i].Reason])
		if len(out[i].Name) > most {
			out[i].Name = fmt.Sprintf("%s... (%d ranks)", out[i].Name[:most], len(names[out[i].Reason]))
		}
	}
	return out
}

func foldNames(names []string) string {
	type run struct {
		stem     string
		from, to int
	}
	var out []string
	var cur *run
	flush := func() {
		switch {
		case cur == nil:
		case cur.from == cur.to:
			out = append(out, fmt.Sprintf("%s-%d", cur.stem, cur.from))
		default:
			out = append(out, fmt.Sprintf("%s-[%d-%d]", cur.stem, cur.from, cur.to))
		}
		cur = nil
	}
	for _, n := range names {
		stem, num, ok := cutNumber(n)
		if !ok {
			flush()
			out = append(out, n)
			continue
		}
		if cur != nil && cur.stem == stem && num == cur.to+1 {
			cur.to = num
			continue
		}
		flush()
		cur = &run{stem, num, num}
	}
	flush()
	return strings.Join(out, ",")
}

func cutNumber(name string) (stem string, num int, ok bool) {
	i := strings.LastIndexByte(name, '-')
	if i <= 0 {
		return "", 0, false
	}
	num, err := strconv.Atoi(name[i+1:])
	if err != nil || num < 0 || strconv.Itoa(num) != name[i+1:] {
		return "", 0, false
	}
	return name[:i], num, true
}
