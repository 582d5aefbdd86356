package rendezvous

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// Display returns the name of a rank for people: its container's own name, with role and index beside it:
// "proj-worker-2 (worker-1)". A name that ends in role and index, such as "pi-worker-1", says both.
func Display(own, alias string) string {
	if own == "" || own == alias || strings.HasSuffix(own, "-"+alias) {
		return cmp.Or(own, alias)
	}
	return own + " (" + alias + ")"
}

// Display returns the name of a rank for people.
func (m Member) Display() string { return Display(m.Own, m.Alias) }

// display returns the name of a container for people before its rank is known. An id without an index is a nonce, which
// says nothing to them.
func (r *Record) display() string {
	switch {
	case r.ID != r.Nonce:
		return Display(r.Own, r.ID)
	case r.Own != "":
		return r.Own
	}
	return fmt.Sprintf("%s at %s", cmp.Or(r.Role, "the container"), r.Addr.Addr())
}

// display returns the name of a container for people, as the environment predicts it.
func (p *Peer) display() string { return Display(p.Own, p.ID) }

// SetName adds the container's own name to this container's record; the roster holds it if it comes in time.
func (n *Node) SetName(name string) {
	n.post(func() {
		if n.phase == Gathering {
			n.current.Own = name
			n.amend()
		}
	})
}

// roundTrip returns the round trip of a connection that can tell it; 0 = unknown.
func (w *wire) roundTrip() time.Duration {
	if w == nil {
		return 0
	}
	if c, ok := w.rwc.(interface{ RoundTrip() time.Duration }); ok {
		return c.RoundTrip()
	}
	return 0
}
