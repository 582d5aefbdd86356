package rendezvous

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Reasons why a rank is missing that the way of reaching it finds out. Config.Dial wraps them.
var (
	ErrOtherSecret = errors.New("has another secret")
	ErrOtherJob    = errors.New("belongs to another job or attempt")
)

// Missing is a rank that is not there yet.
type Missing struct {
	Rank   int    `json:"rank"` // -1 = unknown
	Name   string `json:"name"` // "worker-3", or an address, or "a rank"
	Reason string `json:"reason"`
	secret bool
}

// MissingError says which ranks were not there when the time was over.
type MissingError struct {
	Present, Size int
	Missing       []Missing
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("%d of %d ranks are present; missing: %s", e.Present, e.Size, Fold(e.Missing))
}

// OtherSecret reports whether every missing rank was found, with another secret: waiting does not mend that.
func (e *MissingError) OtherSecret() bool {
	return len(e.Missing) > 0 && !slices.ContainsFunc(e.Missing, func(m Missing) bool { return !m.secret })
}

// Fold writes a list of missing ranks on one line: equal reasons are told once, and neighbours become a range:
// "worker-[3-5],worker-9 (never heard); ps-0 (name does not resolve)".
func Fold(missing []Missing) string {
	var reasons []string
	names := map[string][]string{}
	for _, m := range missing {
		if _, ok := names[m.Reason]; !ok {
			reasons = append(reasons, m.Reason)
		}
		names[m.Reason] = append(names[m.Reason], m.Name)
	}
	var parts []string
	for _, r := range reasons {
		parts = append(parts, fmt.Sprintf("%s (%s)", foldNames(names[r]), r))
	}
	return strings.Join(parts, "; ")
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
