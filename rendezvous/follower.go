package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"
)

// uplink is what a rank other than 0 knows of rank 0. Only the loop touches it.
type uplink struct {
	wire    *wire
	leader  *Record
	missing []Missing // as rank 0 said it last
	present int
	lookErr error // of the last look at rank 0
}

// Accept serves a control connection that came in, to its end. It is how rank 0 reaches this container.
func (n *Node) Accept(ctx context.Context, rwc io.ReadWriteCloser, remote net.Addr) {
	w := newWire(rwc)
	defer w.close()
	defer context.AfterFunc(ctx, w.abort)()
	defer context.AfterFunc(n.ctx, w.abort)()
	err := w.read(func(m message) error {
		if !n.post(func() { n.onMessage(w, m, remote) }) {
			return errEnded
		}
		return nil
	})
	n.post(func() { n.onUplinkLost(w, err) })
}

func (n *Node) onMessage(w *wire, m message, remote net.Addr) {
	if m.Type == hello {
		n.onHello(w, m, remote)
		return
	}
	if n.up.wire != w {
		return
	}
	switch m.Type {
	case refuse:
		w.abort()
	case waiting:
		n.up.missing, n.up.present = m.Missing, m.Present
	case prepare:
		n.onPrepare(w, m)
	case launched:
		if n.phase == Prepared && m.Epoch == n.roster.Epoch {
			n.phase = Running
			n.setGathered(n.roster, nil)
		}
		if n.phase == Running && m.Epoch == n.roster.Epoch {
			w.send(message{Type: started, Epoch: m.Epoch})
		}
	case done:
		if m.Outcome == nil {
			return
		}
		w.send(message{Type: doneAck})
		o := *m.Outcome
		// The outcome may let this process end: the acknowledgement goes first.
		n.wg.Go(func() {
			w.flush()
			n.post(func() { n.setFinished(o, nil) })
		})
	}
}

// onHello answers whoever dialled. Only one container may lead: the one that the environment, or the order, says.
func (n *Node) onHello(w *wire, m message, remote net.Addr) {
	r := m.Record
	self := n.self
	if r == nil || r.validate() != nil {
		w.send(message{Type: refuse, Reason: "the greeting holds no record that can be used"})
		return
	}
	switch {
	case r.Nonce == n.self.Nonce:
		w.send(message{Type: refuse, Record: &self, Reason: "this is the container itself"})
		return
	case n.self.Rank == 0, n.lead != nil && (n.isGathered() || n.self.before(r) < 0 && r.Rank != 0):
		w.send(message{Type: refuse, Record: &self, Reason: fmt.Sprintf("%s leads already", n.self.ID)})
		return
	case n.lead != nil:
		n.stepDown()
	}
	if n.up.wire != nil && n.up.wire != w {
		n.up.wire.abort()
	}
	if n.phase == Prepared && (n.up.leader == nil || n.up.leader.Nonce != r.Nonce) {
		n.phase = Gathering // the roster was another rank 0's
	}
	if n.phase != Running {
		n.log.Debug("rank 0 is connected", "peer", r.ID, "remote", remote, "elapsed", time.Since(n.begin).Round(time.Microsecond))
	}
	n.up.wire, n.up.leader = w, r
	w.send(message{Type: register, Record: &self, State: n.phase, Epoch: n.roster.Epoch})
}

func (n *Node) onPrepare(w *wire, m message) {
	if n.phase == Running || n.phase == Ended || m.Roster == nil {
		return
	}
	if err := m.Roster.verify(&n.self); err != nil {
		w.send(message{Type: refuse, Reason: err.Error()})
		return
	}
	n.roster, n.phase = *m.Roster, Prepared
	w.send(message{Type: ack, Epoch: n.roster.Epoch, Hash: n.roster.Hash})
}

func (n *Node) onUplinkLost(w *wire, err error) {
	if n.up.wire != w {
		return
	}
	// Prepared stays: rank 0 may have launched already, and says so when it is back.
	n.up.wire = nil
	if n.phase == Running {
		n.log.Warn("control connection to rank 0 lost", "reason", explain(err))
		n.wg.Go(func() { n.awaitReturn(err) })
	}
}

// awaitReturn gives rank 0 the grace time to come back, and looks whether anybody is still there. Two refusals in a row
// mean that its process is gone: nobody listens on its port any more.
func (n *Node) awaitReturn(cause error) {
	deadline := time.Now().Add(n.cfg.LossGrace)
	refused := 0
	var b backoff
	for {
		back := false
		var leader *Record
		if !n.ask(func() { back, leader = n.up.wire != nil || n.phase != Running, n.up.leader }) || back {
			return
		}
		err := n.look(leader.ID, leader.Addr)
		switch {
		case errors.Is(err, syscall.ECONNREFUSED):
			refused++
		case err != nil:
			cause, refused = err, 0
		default:
			refused = 0
		}
		if refused >= 2 {
			cause = err
		}
		if refused >= 2 || time.Now().After(deadline) {
			n.post(func() {
				if n.up.wire == nil && n.phase == Running {
					n.setFinished(Outcome{}, &LostError{Reason: explain(cause)})
				}
			})
			return
		}
		select {
		case <-n.ctx.Done():
			return
		case <-time.After(b.wait()):
		}
	}
}

// look opens a control connection and closes it again: what it meets is the reason why somebody is not there.
func (n *Node) look(id string, addr netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(n.ctx, dialTimeout)
	defer cancel()
	rwc, err := n.cfg.Dial(ctx, id, addr)
	if err != nil {
		return err
	}
	_ = rwc.Close()
	return nil
}
