package rendezvous

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/paiinit/paiinit/joblog"
)

// attempts counts the dials to a rank that is missing.
type attempts struct {
	dials int
	last  error          // of the last one
	at    netip.AddrPort // where the last one failed; invalid = unknown
}

// note counts an attempt that ended with err. An attempt without an address is none.
func (a *attempts) note(err error) {
	if _, dns := errors.AsType[*net.DNSError](err); dns || err == nil || errors.Is(err, errNotAsked) {
		return
	}
	a.dials++
	a.last, a.at = err, addressIn(err)
}

// addressIn returns the address that a failed dial puts before its error.
func addressIn(err error) netip.AddrPort {
	head, _, _ := strings.Cut(err.Error(), ": ")
	at, _ := netip.ParseAddrPort(head)
	return at
}

// tried is what was done to find a rank that is missing at the deadline.
type tried struct {
	at      netip.AddrPort
	dials   int
	during  time.Duration
	lookups int
	name    string // that did not resolve
	unnamed string // the reason why it did not, if the name may exist
	last    string // why the last dial failed
	port    uint16 // that did not accept it; 0 = the reason is another one
	calls   bool   // it reaches rank 0
}

// tried describes the attempts to reach the container at host since a time. known is the last error, and
// incompatible that of a container that answered in its place.
func (a *attempts) tried(n *Node, host string, since time.Time, known, incompatible error) *tried {
	if dns, ok := errors.AsType[*net.DNSError](known); ok && a.dials == 0 {
		t := &tried{name: cmp.Or(dns.Name, host), lookups: n.find.names.lookups(host)}
		if !dns.IsNotFound {
			t.unnamed = dns.Err
		}
		return t
	}
	if a.dials == 0 {
		return nil
	}
	t := &tried{at: a.at, dials: a.dials, during: time.Since(since), last: cause(a.last)}
	if errors.Is(a.last, syscall.ECONNREFUSED) || isTimeout(a.last) {
		t.port = a.at.Port()
	}
	if incompatible != nil && !isIncompatible(a.last) {
		t.last = fmt.Sprintf("%s; now %s", cause(incompatible), t.last)
	}
	return t
}

// cause explains the error of a dial without the address.
func cause(err error) string {
	text := explain(err)
	if at := addressIn(err); at.IsValid() {
		text = strings.TrimPrefix(text, at.String()+": ")
	}
	return text
}

// foldTried writes a list of missing ranks at the deadline, with what was tried. Ranks with the same last result are
// one entry.
func foldTried(missing []Missing) (parts []string) {
	var keys []string
	groups := map[string][]Missing{}
	for _, m := range missing {
		key := "reason " + impersonal(m.Reason)
		if t := m.tried; t != nil {
			key = fmt.Sprint(t.calls, t.name != "", t.unnamed, " ", t.last)
		}
		if len(groups[key]) == 0 {
			keys = append(keys, key)
		}
		groups[key] = append(groups[key], m)
	}
	for _, key := range keys {
		parts = append(parts, sentenceOf(groups[key]))
	}
	return parts
}

// sentenceOf describes missing ranks with the same last result.
func sentenceOf(same []Missing) string {
	one, t := same[0], same[0].tried
	names, name, each := foldNames(same), "name", " each"
	if len(same) == 1 && t != nil {
		name, each = "name "+t.name, ""
		if t.at.IsValid() && t.at.String() != one.Name {
			if own, alias, ok := strings.Cut(names, " ("); ok {
				names = fmt.Sprintf("%s (%s, %v)", own, strings.TrimSuffix(alias, ")"), t.at.Addr())
			} else {
				names += fmt.Sprintf(" (%v)", t.at.Addr())
			}
		}
	}
	if t == nil {
		reason := one.Reason
		if len(same) > 1 {
			reason = impersonal(reason)
		}
		return fmt.Sprintf("%s: %s", names, reason)
	}
	least, most, port := *t, *t, t.port
	for _, m := range same {
		if m.tried.port != port {
			port = 0
		}
		least.dials, most.dials = min(least.dials, m.tried.dials), max(most.dials, m.tried.dials)
		least.lookups, most.lookups = min(least.lookups, m.tried.lookups), max(most.lookups, m.tried.lookups)
		most.during = max(most.during, m.tried.during)
	}
	if t.name != "" {
		lookups := times(least.lookups, most.lookups, "lookup")
		s := fmt.Sprintf("%s: %s did not resolve in %s%s", names, name, lookups, each)
		if t.unnamed != "" {
			s += ", last: " + t.unnamed
		}
		return s
	}
	s := names + ": "
	if t.calls {
		s += "it reaches rank 0, but rank 0 cannot connect to it: "
	}
	s += fmt.Sprintf("dialled %s%s in %s, last: %s", times(least.dials, most.dials, "time"), each,
		joblog.Seconds(most.during), t.last)
	if port > 0 {
		s += fmt.Sprintf(" on %d/tcp", port)
	}
	return s
}

// times writes a number, or two different ones, with a noun: "1 time", "12 times", "11 to 13 times".
func times(least, most int, noun string) string {
	switch {
	case least != most:
		return fmt.Sprintf("%d to %d %ss", least, most, noun)
	case least == 1:
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", least, noun)
}
