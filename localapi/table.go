package localapi

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"iter"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// usualWidth is the width of what is printed elsewhere than on a terminal.
const usualWidth = 80

// Layout is how a status is printed.
type Layout struct {
	Width int  // columns; 0 = usualWidth
	All   bool // also one row for each rank
	// Display joins a container's own name and its alias to the rank's name for people; nil = the alias alone.
	Display func(own, alias string) string
	// Fold replaces neighbours among names by ranges; nil = it does not.
	Fold func(names []string) []string
}

// WriteTable prints a status as text: the phase in words, this rank, the ranks that are not here with the reasons, and
// the other ranks folded by equal properties.
func (l Layout) WriteTable(w io.Writer, s *Status, now time.Time) error {
	_, err := io.WriteString(w, strings.Join(l.lines(s, now), "\n")+"\n")
	return err
}

func (l Layout) lines(s *Status, now time.Time) []string {
	l.Width = cmp.Or(l.Width, usualWidth)
	out := l.wrap(s.headline(now), "", "    ")
	out = append(out, l.wrap(l.self(s), "", "    ")...)
	if text := s.unready(); text != "" {
		out = append(out, l.wrap(text, "", "    ")...)
	}
	if text := s.restarted(); text != "" {
		out = append(out, l.wrap(printable(text), "", "    ")...)
	}
	if details := s.details(); l.All && details != "" {
		out = append(out, l.wrap(details, "", "    ")...)
	}
	if s.Outcome != nil && s.Outcome.Reason != "" {
		out = append(out, "")
		for line := range strings.Lines(s.Outcome.Reason) {
			out = append(out, l.wrap(printable(line), "    ", "    ")...)
		}
	}
	out = append(append(out, ""), l.rows(s.Ranks, s, now)...)
	if l.All && len(s.Ranks) > 0 {
		out = append(append(out, ""), l.each(s.Ranks, now)...)
	}
	return out
}

// headline says the phase in words, and how many ranks are present.
func (s *Status) headline(now time.Time) string {
	if s.Spare {
		return "spare: " + s.present()
	}
	switch s.Phase {
	case Prepared:
		return "launching: " + s.present()
	case Ended:
		if s.Outcome == nil {
			return "ended"
		}
		return fmt.Sprintf("ended with status %d", s.Outcome.Status)
	case Gathering:
		if left := s.Deadline.Sub(now); s.Deadline.IsZero() {
			return "gathering: " + s.present()
		} else if left >= time.Second {
			return "gathering: " + s.present() + "; gives up in " + duration(left)
		}
		return "gathering: " + s.present() + "; giving up"
	}
	return string(s.Phase) + ": " + s.present()
}

func (s *Status) present() string {
	here := 0
	for _, r := range s.Ranks {
		if r.isHere() {
			here++
		}
	}
	are := "ranks are"
	if here == 1 && s.Size <= 1 {
		are = "rank is"
	}
	switch {
	case s.Size < 0:
		return fmt.Sprintf("%d %s present", here, are)
	case s.Size == here && here == 2:
		return "both ranks are present"
	case s.Size == here && here > 2:
		return fmt.Sprintf("all %d ranks are present", here)
	}
	return fmt.Sprintf("%d of %d %s present", here, s.Size, are)
}

func (r *Rank) isHere() bool { return r.State == Present || r.State == Heard }

func (r *Rank) isAbsent() bool { return r.State == Missing || r.State == Lost }

// self says which rank this is.
func (l Layout) self(s *Status) string {
	name := s.Name
	for _, r := range s.Ranks {
		if s.Rank >= 0 && r.Rank == s.Rank {
			name = l.title(&r)
		}
	}
	switch {
	case s.Spare:
		return "this is " + l.short(name) + ", which takes the place of a container that is lost"
	case s.Rank < 0:
		return "this is " + l.short(name) + ", whose rank is not agreed yet"
	case name == "":
		return fmt.Sprintf("this is rank %d", s.Rank)
	}
	return fmt.Sprintf("this is rank %d, %s", s.Rank, l.short(name))
}

// unready says why the running job is not ready, unless the headline or the rows of lost ranks say it.
func (s *Status) unready() string {
	why, ok := strings.CutPrefix(s.NotReady, string(Running)+": ")
	if s.Phase != Running || !ok || slices.ContainsFunc(s.Ranks, func(r Rank) bool { return r.isAbsent() }) {
		return ""
	}
	return "not ready: " + printable(why)
}

// restarted says how often and why the job was restarted last; "" = it was not.
func (s *Status) restarted() string {
	if len(s.Restarts) == 0 {
		return ""
	}
	last := s.Restarts[len(s.Restarts)-1]
	state := fmt.Sprintf("generation %d", last.Generation)
	if last.Generation == 0 {
		state = "starting again"
	}
	return fmt.Sprintf("%s, restart %d: %s", state, last.Restart, last.Cause)
}

// details says what people need seldom.
func (s *Status) details() string {
	var parts []string
	if s.Hash != "" {
		parts = append(parts, fmt.Sprintf("epoch %d, roster %.12s", s.Epoch, s.Hash))
	}
	for _, phase := range []string{"listen", "gather", "launch"} {
		if t, ok := s.Timings[phase]; ok {
			parts = append(parts, fmt.Sprintf("%s %.3fs", phase, t))
		}
	}
	return strings.Join(parts, ", ")
}

// title returns the name of a rank for people.
func (l Layout) title(r *Rank) string {
	if l.Display == nil || r.Name == "" {
		return r.Alias
	}
	return l.Display(r.Name, r.Alias)
}

// Titles returns the names of the ranks for people; none if paiinit does not answer.
func (c Client) Titles(ctx context.Context, display func(own, alias string) string) map[int]string {
	titles := make(map[int]string)
	if s, err := c.Status(ctx); err == nil {
		for _, r := range s.Ranks {
			titles[r.Rank] = Layout{Display: display}.title(&r)
		}
	}
	return titles
}

// short cuts a name so that it fits on a line with other words. Role and index stay whole.
func (l Layout) short(name string) string {
	most := max(l.Width-36, 20)
	own, alias, paired := strings.Cut(name, " (")
	if !paired || len(alias) > most/2 {
		return cut(name, most)
	}
	return cut(own, most-len(alias)-2) + " (" + alias
}

// The classes of groups, in the order in which they are printed.
const (
	absent  = iota // missing or lost
	delays         // present, but the launch waits for it
	settled        // present
)

// group is the ranks of which the same is to be said.
type group struct {
	class int
	about string // the reason, or what the ranks have
	ranks []Rank
}

// mostApart is the number of absent ranks up to which reasons that differ only in addresses stay apart.
const mostApart = 8

// groups folds ranks that have the same to say.
func (s *Status) groups(ranks []Rank) (all []group) {
	apart := 0
	for _, r := range ranks {
		if r.isAbsent() {
			apart++
		}
	}
	at := make(map[string]int)
	for _, r := range ranks {
		g := group{class: settled, about: r.Equipment()}
		if r.isAbsent() || r.Reason != "" {
			g.class, g.about = delays, r.Reason
			if r.isAbsent() {
				g.class = absent
			}
			if apart > mostApart {
				g.about = r.impersonal()
			}
		}
		key := fmt.Sprintf("%d %s %s", g.class, r.State, g.about)
		i, ok := at[key]
		if !ok {
			i, at[key] = len(all), len(all)
			all = append(all, g)
		}
		all[i].ranks = append(all[i].ranks, r)
	}
	slices.SortStableFunc(all, func(a, b group) int { return cmp.Compare(a.class, b.class) })
	return all
}

// describe says what the ranks of a group have in common, in one or two paragraphs.
func (l Layout) describe(g *group, phase Phase, now time.Time) []string {
	state := string(g.ranks[0].State)
	switch {
	case g.class == absent:
		return []string{state + sinceText(g.ranks, now) + ": " + l.names(g.ranks), printable(g.about)}
	case g.class == delays:
		return []string{state + ": " + l.names(g.ranks), printable(g.about)}
	case g.ranks[0].State == Heard:
		state = "heard by gossip only"
	}
	text := state + ": " + g.about
	if phase == Ended {
		text = g.about
	}
	if g.ranks[0].Rank < 0 {
		text += " (" + l.names(g.ranks) + ")"
	}
	return []string{text}
}

// sinceText says how long the longest of the ranks has been absent.
func sinceText(ranks []Rank, now time.Time) string {
	longest := time.Duration(0)
	for _, r := range ranks {
		if !r.Since.IsZero() {
			longest = max(longest, now.Sub(r.Since))
		}
	}
	if longest < time.Second {
		return ""
	}
	return " for " + duration(longest)
}

// names lists some of the ranks: their numbers stand beside.
func (l Layout) names(ranks []Rank) string {
	const most = 6
	var list []string
	for _, r := range ranks {
		list = append(list, l.short(l.title(&r)))
	}
	if l.Fold != nil {
		list = l.Fold(list)
	}
	if len(list) > most {
		list = append(list[:most], "...")
	}
	return strings.Join(list, ", ")
}

// impersonal returns the reason without the rank's own addresses and names.
func (r *Rank) impersonal() string {
	words := strings.Fields(r.Reason)
	words = slices.DeleteFunc(words, func(w string) bool {
		w = strings.TrimRight(w, ":,;")
		_, err := netip.ParseAddrPort(w)
		return err == nil || w == r.Host || w == r.Alias || w == r.Name || w == r.address()
	})
	return strings.Join(words, " ")
}

// Equipment says what the rank has, as far as it is known.
func (r *Rank) Equipment() string {
	var parts []string
	count := func(n int, one string) {
		switch {
		case n < 0:
		case n == 0:
			parts = append(parts, "no "+one)
		case n == 1:
			parts = append(parts, "1 "+one)
		default:
			parts = append(parts, strconv.Itoa(n)+" "+one+"s")
		}
	}
	count(r.Slots, "slot")
	count(r.GPUs, "GPU")
	switch r.Fabric {
	case "":
	case "none":
		parts = append(parts, "no RDMA")
	default:
		parts = append(parts, r.Fabric)
	}
	return strings.Join(parts, ", ")
}

// widestList is the widest list of ranks that stands beside its text.
const widestList = 24

// rows prints ranks folded into groups: their numbers on the left, the text beside or, for a long list, below.
func (l Layout) rows(ranks []Rank, s *Status, now time.Time) (out []string) {
	groups := s.groups(ranks)
	column := 4
	lists := make([]string, len(groups))
	for i, g := range groups {
		lists[i] = rankList(g.ranks)
		if len(lists[i]) <= widestList {
			column = max(column, len(lists[i])+2)
		}
	}
	indent := strings.Repeat(" ", column)
	for i := range groups {
		start := indent
		if len(lists[i]) <= widestList {
			start = fmt.Sprintf("%-*s", column, lists[i])
		} else {
			out = append(out, l.wrap(strings.ReplaceAll(lists[i], ",", ", "), "", "")...)
		}
		for _, text := range l.describe(&groups[i], s.Phase, now) {
			if text != "" {
				out = append(out, l.wrap(text, start, indent)...)
				start = indent
			}
		}
	}
	return out
}

// rankList writes ranks as 0-16,18-39; "-" if they are not agreed yet.
func rankList(ranks []Rank) string {
	var parts []string
	for i := 0; i < len(ranks); {
		first, run := ranks[i].Rank, 1
		for i+run < len(ranks) && ranks[i+run].Rank == first+run {
			run++
		}
		switch {
		case first < 0:
			run = len(ranks) - i
			parts = append(parts, "-")
		case run == 1:
			parts = append(parts, strconv.Itoa(first))
		default:
			parts = append(parts, fmt.Sprintf("%d-%d", first, first+run-1))
		}
		i += run
	}
	return strings.Join(parts, ",")
}

// each prints one row for each rank: where it is, since when it has its state, and the round trip from rank 0.
func (l Layout) each(ranks []Rank, now time.Time) []string {
	const fixed = 6 + 9 + 8 + 9 // RANK, STATE, FOR and RTT with two blanks after each
	names, widest := make([]string, len(ranks)), 4
	for i, r := range ranks {
		names[i] = l.short(l.title(&r))
		widest = max(widest, len(names[i]))
	}
	longest := 7
	for i := range ranks {
		longest = max(longest, len(ranks[i].address()))
	}
	widest = min(widest, max(l.Width-fixed-2-longest, 20))
	row := func(rank, name, state, since, rtt, address string) string {
		line := fmt.Sprintf("%-4s  %-*s  %-7s  %-6s  %-7s  %s", rank, widest, cut(name, widest), state, since, rtt,
			cut(address, l.Width-fixed-widest-2))
		return strings.TrimRight(line, " ")
	}
	out := []string{row("RANK", "NAME", "STATE", "FOR", "RTT", "ADDRESS")}
	for i := range ranks {
		r := &ranks[i]
		rank, since, rtt := "-", "-", "-"
		if r.Rank >= 0 {
			rank = strconv.Itoa(r.Rank)
		}
		if !r.Since.IsZero() {
			since = duration(now.Sub(r.Since))
		}
		if r.RTT > 0 {
			rtt = strconv.FormatFloat(r.RTT, 'f', max(0, 3-len(strconv.Itoa(int(r.RTT)))), 64) + "ms"
		}
		out = append(out, row(rank, names[i], string(r.State), since, rtt, r.address()))
	}
	return out
}

func (r *Rank) address() string {
	if r.Port > 0 {
		return net.JoinHostPort(r.Host, strconv.Itoa(r.Port))
	}
	return r.Host
}

// duration writes a duration in at most two units: 48s, 7m12s, 2h05m, 3d04h.
func duration(d time.Duration) string {
	s := int(max(d, 0) / time.Second)
	switch {
	case s < 60:
		return fmt.Sprintf("%ds", s)
	case s < 3600:
		return fmt.Sprintf("%dm%02ds", s/60, s%60)
	case s < 24*3600:
		return fmt.Sprintf("%dh%02dm", s/3600, s/60%60)
	}
	return fmt.Sprintf("%dd%02dh", min(s/(24*3600), 999), s/3600%24)
}

// printable replaces control characters: another rank's reason must not move the cursor.
func printable(text string) string {
	return strings.TrimSpace(strings.Map(func(c rune) rune {
		if c < ' ' || c >= 0x7f && c < 0xa0 {
			return ' '
		}
		return c
	}, text))
}

// wrap breaks a text at blanks. A word that does not fit on a line loses its middle.
func (l Layout) wrap(text, first, rest string) (out []string) {
	line, empty := first, true
	for _, word := range strings.Fields(text) {
		if !empty && width(line)+1+width(word) > l.Width {
			out = append(out, line)
			line, empty = rest, true
		}
		if !empty {
			line += " "
		}
		line += cut(word, l.Width-width(line))
		empty = false
	}
	if !empty || len(out) == 0 {
		out = append(out, strings.TrimRight(line, " "))
	}
	return out
}

func width(text string) int { return len([]rune(text)) }

// cut removes the middle of a text that is wider than most: names differ at their ends.
func cut(text string, most int) string {
	const gap = "..."
	runes := []rune(text)
	if len(runes) <= most {
		return text
	}
	if most <= len(gap) {
		return string(runes[:max(most, 0)])
	}
	head := (most - len(gap)) / 2
	return string(runes[:head]) + gap + string(runes[len(runes)-(most-len(gap)-head):])
}

// Changes asks every second. It yields the status now, and again after every change until the job has ended; with
// every, after every question. It ends after an error.
func (c Client) Changes(ctx context.Context, every bool) iter.Seq2[*Status, error] {
	return func(yield func(*Status, error) bool) {
		var last []byte
		for {
			s, err := c.Status(ctx)
			if err != nil {
				yield(nil, err)
				return
			}
			now := s.stable()
			if (every || !bytes.Equal(last, now)) && !yield(s, nil) || s.Phase == Ended {
				return
			}
			last = now
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		}
	}
}
