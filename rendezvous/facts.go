package rendezvous

import (
	"context"
	"time"
)

// Each rank tells rank 0 about its container in notes, which are opaque here. They travel after the registration, and
// again when the connection is replaced. No note is in the roster, and only Config.NoteWait makes the launch wait.

// The kinds of notes.
const (
	Facts     = "facts"     // Config.NoteWait makes the launch wait for it
	Preflight = "preflight" // the rank's own check has begun, and later how it ended; Config.Fabric comes after it
)

// maxNote bounds the text of a note: rank 0 keeps those of all ranks. maxKinds bounds how many a rank sends.
const (
	maxNote  = 8 << 10
	maxKinds = 4
)

// Tell sends a note to rank 0, and replaces an earlier one of that kind. It drops a text of more than 8 KiB. A rank
// that coordinates the launch keeps its own notes.
func (n *Node) Tell(kind string, text []byte) {
	n.post(func() {
		if len(text) > maxNote || n.notes[kind] == nil && len(n.notes) >= maxKinds {
			return
		}
		n.notes[kind] = text
		if n.lead != nil {
			n.lead.tryPrepare()
		} else {
			n.up.sendNote(kind)
		}
	})
}

func (u *uplink) sendNote(kind string) {
	u.send(message{Type: note, Name: kind, Text: u.n.notes[kind], Now: time.Now()})
}

// sendNotes follows a registration, which says that the preflight of this rank still runs: rank 0 must have the result
// before it may launch. The last message says that it has ended.
func (u *uplink) sendNotes(greeting *Record) {
	for kind := range u.n.notes {
		u.sendNote(kind)
	}
	if u.n.notes[Preflight] != nil && !u.n.looking {
		u.send(u.registration(greeting))
	}
}

func (c *coordinator) onNote(t *target, m message) {
	if len(m.Text) > maxNote || len(m.Name) > MaxName {
		return
	}
	if c.n.cfg.Noted != nil {
		c.n.cfg.Noted(t.key, m.Name, m.Text, time.Since(m.Now))
	}
	t.preflight = t.preflight || m.Name == Preflight
	if m.Name == Facts && t.rec != nil { // a rank that cannot take part has none
		t.noted = t.rec.Nonce
		c.tryPrepare()
	}
}

// awaitsNotes reports whether the launch waits for the facts of a rank: for at most Config.NoteWait from the moment at
// which the last rank came.
func (c *coordinator) awaitsNotes() bool {
	if c.n.cfg.NoteWait <= 0 || c.isNoted() {
		c.notesDue = time.Time{}
		return false
	}
	if c.notesDue.IsZero() || c.notesOf != c.registrations {
		c.notesDue, c.notesOf = time.Now().Add(c.n.cfg.NoteWait), c.registrations
		c.n.after(c.n.cfg.NoteWait, func() {
			if c.n.lead == c {
				c.tryPrepare()
			}
		})
	}
	return time.Now().Before(c.notesDue)
}

func (c *coordinator) isNoted() bool {
	for _, t := range c.targets {
		if t.rec != nil && t.noted != t.rec.Nonce {
			return false
		}
	}
	return c.n.notes[Facts] != nil
}

// ClockAhead measures how far the time of day of another rank is ahead of rank 0's, at most bound more or less. It
// reports false if the rank does not answer before ctx ends. Rank 0 calls it after the launch.
func (n *Node) ClockAhead(ctx context.Context, rank int) (ahead, bound time.Duration, ok bool) {
	lead := n.leading()
	if lead == nil {
		return 0, 0, false
	}
	r, ok := lead.readClock(ctx, rank)
	if !ok || r.now.IsZero() {
		return 0, 0, false
	}
	bound = r.heard.Sub(r.sent) / 2
	return r.now.Sub(r.sent.Add(bound)), bound, true
}

// stillRuns is why the launch waits for a rank whose own check runs.
const stillRuns = "it is present, but its preflight still runs"

// examines says why the launch waits for a rank that is present, "" if it does not.
func (t *target) examines() string { return examines(t.looking, t.preflight) }

func (n *Node) examines() string { return examines(n.looking, n.notes[Preflight] != nil) }

func examines(looking, preflight bool) string {
	switch {
	case !looking:
		return ""
	case preflight:
		return stillRuns
	}
	return stillExamines
}
