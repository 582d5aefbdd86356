package timeline

import (
	_ "embed"
	"fmt"
	"html"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Page is what the HTML page shows. Empty parts are left out.
type Page struct {
	Job      string // its name
	Phase    string
	Made     time.Time
	States   []State
	Timeline Timeline
	Ended    bool
	Status   int        // of the job, if Ended
	Stopped  bool       // by a signal from outside: it has not failed
	Reason   string     // how it ended, if Ended
	Facts    [][]string // name and value
	Drift    [][]string // a fact, one of its values, and the ranks that have this value
}

// State is the state of one rank.
type State struct {
	Rank      int // -1 = not agreed yet
	Name      string
	Address   string
	State     string // present, heard, missing or lost
	Reason    string // why it is missing or lost, or what the launch waits for
	Equipment string // slots, GPUs, fabric
}

//go:embed page.css
var style string

const (
	fewBars   = 40  // more bars are folded
	fewNames  = 8   // more names are counted
	manyTiles = 200 // more tiles are small
)

// markup is a page in the making. Every value goes through text, because names and reasons come from the job.
type markup struct{ strings.Builder }

// put writes a format of this package, with its strings escaped.
func (m *markup) put(format string, values ...any) {
	for i, v := range values {
		if s, ok := v.(string); ok {
			values[i] = html.EscapeString(clean(s))
		}
	}
	fmt.Fprintf(m, format, values...)
}

// WriteHTML writes one page that needs nothing else: no network, no script. Its policy forbids the browser to load
// anything, whatever a value says.
func (p *Page) WriteHTML(w io.Writer) error {
	var m markup
	m.put("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"+
		"<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"+
		"<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"+
		"<title>%s</title>\n<style>\n", p.title())
	m.WriteString(style)
	m.put("</style>\n</head>\n<body>\n")
	p.head(&m)
	p.grid(&m)
	p.bars(&m)
	if len(p.Drift) > 0 {
		m.put("<h2>Differences between the ranks</h2>\n")
		m.table("drift", append([][]string{{"what", "value", "ranks"}}, p.Drift...))
	}
	p.details(&m)
	if len(p.Facts) > 0 {
		m.put("<h2>Versions</h2>\n")
		m.table("plain", append([][]string{{"what", "value"}}, p.Facts...))
	}
	m.put("</body>\n</html>\n")
	_, err := io.WriteString(w, m.String())
	return err
}

func (p *Page) title() string {
	if p.Job == "" {
		return "paiinit"
	}
	return p.Job
}

// isHere reports whether the rank has come and was not lost.
func (s *State) isHere() bool { return s.State == "present" || s.State == "heard" }

// absent counts the ranks that are missing or lost.
func (p *Page) absent() (n int) {
	for i := range p.States {
		if !p.States[i].isHere() {
			n++
		}
	}
	return n
}

// badge returns the state of the job in a few words, and the class of the badge.
func (p *Page) badge() (words, class string) {
	switch {
	case p.Ended && p.Stopped && p.Status != 0:
		return fmt.Sprintf("stopped, status %d", p.Status), "wait"
	case p.Ended && p.Status != 0:
		return fmt.Sprintf("failed, status %d", p.Status), "bad"
	case p.Ended:
		return "succeeded", ""
	case p.Phase == "running" && p.absent() > 0:
		return "running, ranks lost", "bad"
	case p.Phase == "running":
		return "running", ""
	case p.absent() > 0:
		return fmt.Sprintf("waiting for %d of %d ranks", p.absent(), len(p.States)), "wait"
	}
	return p.Phase, "wait"
}

func (p *Page) head(m *markup) {
	words, class := p.badge()
	m.put("<h1>%s <span class=\"badge %s\">%s</span></h1>\n", p.title(), class, words)
	m.put("<p class=\"dim\">%s. As of %s UTC.</p>\n", p.Timeline.headline(), p.Made.UTC().Format(time.DateTime))
	if p.Ended && p.Reason != "" {
		class = ""
		if p.Status != 0 {
			class = "bad"
		}
		m.put("<pre class=\"%s\">%s</pre>\n", class, p.Reason)
	}
	if len(p.Timeline.Ranks) > 0 {
		m.put("<p class=\"path\"><strong>Critical path:</strong> %s</p>\n", p.Timeline.Critical())
	}
}

// grid shows one tile for each rank.
func (p *Page) grid(m *markup) {
	if len(p.States) == 0 {
		return
	}
	size := ""
	if len(p.States) > manyTiles {
		size = " small"
	}
	m.put("<h2>Ranks</h2>\n<p>%d of %d present.</p>\n<ul class=\"grid%s\">\n",
		len(p.States)-p.absent(), len(p.States), size)
	for i := range p.States {
		s := &p.States[i]
		class := s.State
		if s.State == "present" && s.Reason != "" {
			class = "slow"
		}
		hint := s.Name + ": " + s.State
		if s.Reason != "" {
			hint += ", " + s.Reason
		}
		m.put("<li class=\"%s\" title=\"%s\">%s</li>\n", class, hint, s.label())
	}
	m.put("</ul>\n")
	for _, why := range p.reasons() {
		m.put("<p><strong>%s</strong> %s: %s</p>\n", why.names, why.state, why.reason)
	}
}

// cause is a reason that several ranks may share.
type cause struct{ names, state, reason string }

// reasons lists each reason once.
func (p *Page) reasons() []cause {
	var all []cause
	count := map[cause]int{}
	for i := range p.States {
		s := &p.States[i]
		kind := cause{state: s.State, reason: s.Reason}
		if s.Reason == "" {
			continue
		}
		if count[kind]++; count[kind] == 1 {
			all = append(all, cause{s.Name, s.State, s.Reason})
			continue
		}
		at := slices.IndexFunc(all, func(c cause) bool { return c.state == s.State && c.reason == s.Reason })
		if count[kind] <= fewNames {
			all[at].names += ", " + s.Name
		}
	}
	for i := range all {
		n := count[cause{state: all[i].state, reason: all[i].reason}]
		if n > fewNames {
			all[i].names += fmt.Sprintf(" and %d more", n-fewNames)
		}
		verb := "is "
		if n > 1 {
			verb = "are "
		}
		all[i].state = verb + all[i].state
	}
	return all
}

func (s *State) label() string {
	if s.Rank < 0 {
		return "?"
	}
	return strconv.Itoa(s.Rank)
}

// bars shows what each rank did until shortly after the launch.
func (p *Page) bars(m *markup) {
	t := &p.Timeline
	if len(t.Ranks) == 0 {
		return
	}
	m.put("<h2>Timeline</h2>\n<div class=\"bars\">\n")
	m.put("<span></span><div class=\"axis dim\"><span>0 s</span><span>%s</span></div>"+
		"<span class=\"num\">ready</span>\n",
		Span(t.end().Sub(t.origin())))
	// Ranks that never came have no bar; their reasons stand above.
	ranks := slices.DeleteFunc(t.slowestFirst(), func(r *Rank) bool { return len(t.stages(r)) == 0 })
	shown := ranks[:min(len(ranks), fewBars)]
	for _, r := range shown {
		p.bar(m, r)
	}
	m.put("</div>\n")
	if rest := ranks[len(shown):]; len(rest) > 0 {
		m.put("<details><summary>%d more ranks, which came earlier</summary>\n<div class=\"bars\">\n", len(rest))
		for _, r := range rest {
			p.bar(m, r)
		}
		m.put("</div></details>\n")
	}
	m.put("<div class=\"key\">")
	for i, k := range kinds() {
		m.put("<span><i class=\"k%d\"></i>%s</span>", i, k.name)
	}
	m.put("<span><b></b>first session</span>")
	if slices.ContainsFunc(t.Ranks, func(r Rank) bool { return r.Lost }) {
		m.put("<span><b class=\"lost\"></b>lost</span>")
	}
	m.put("</div>\n")
}

func (p *Page) bar(m *markup, r *Rank) {
	t := &p.Timeline
	from, whole := t.origin(), max(t.end().Sub(t.origin()), 1)
	percent := func(at time.Time) float64 {
		return min(max(100*float64(at.Sub(from))/float64(whole), 0), 100)
	}
	class := ""
	if t.missing() == "" && len(t.Ranks) > 1 && t.last() == r {
		class = "critical"
	}
	m.put("<span class=\"%s\" title=\"%s\">%s</span><div class=\"bar\">", class, r.Name, r.Name)
	for _, g := range t.stages(r) {
		if left, right := percent(g.from), percent(g.to); left < 100 {
			m.put("<i class=\"k%d\" style=\"left:%.2f%%;width:%.2f%%\" title=\"%s: %s\"></i>",
				int(g.kind), left, right-left, kinds()[g.kind].name, Span(g.to.Sub(g.from)))
		}
	}
	if at := percent(r.Session); !r.Session.IsZero() && at < 100 {
		m.put("<b style=\"left:%.2f%%\" title=\"first session\"></b>", at)
	}
	if at := percent(r.Ended); r.Lost && at < 100 {
		m.put("<b class=\"lost\" style=\"left:%.2f%%\" title=\"lost\"></b>", at)
	}
	m.put("</div><span class=\"num\">%s</span>\n", t.after(r.Reachable))
}

// details lists every rank as text.
func (p *Page) details(m *markup) {
	if len(p.States) == 0 {
		return
	}
	rows := [][]string{{"rank", "name", "address", "state", "equipment"}}
	for i := range p.States {
		s := &p.States[i]
		rows = append(rows, []string{s.label(), s.Name, s.Address, s.State, s.Equipment})
	}
	open := ""
	if len(rows) <= fewBars {
		open = " open"
	}
	m.put("<h2>Hosts</h2>\n<details%s><summary>%d ranks</summary>\n", open, len(p.States))
	m.table("plain", rows)
	m.put("</details>\n")
}

// table writes rows of text; the first one is the header. A wide table scrolls by itself.
func (m *markup) table(class string, rows [][]string) {
	m.put("<div class=\"scroll\"><table class=\"%s\">\n", class)
	for i, row := range rows {
		cell := "td"
		if i == 0 {
			cell = "th"
		}
		m.put("<tr>")
		for _, value := range row {
			m.put("<"+cell+">%s</"+cell+">", value)
		}
		m.put("</tr>\n")
	}
	m.put("</table></div>\n")
}
