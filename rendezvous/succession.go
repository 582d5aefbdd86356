package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"github.com/paiinit/paiinit/joblog"
)

// A job that may restart outlives its rank 0 where the environment tells every rank. The other ranks come to the
// verdict that rank 0 is lost, clear, and start a node of the next generation, a survivor, which waits for the next
// start of rank 0's container:
//
//	the next start of rank 0, generation 1     a survivor, generation g+1
//	   hello(record)  ----------------------->
//	                  <-----------------------  register(record, g+1, text, fence)
//	   adopts g+1 and the text, and greets every rank again...
//	   hello(record, g+1, text)  ------------>
//	                  <-----------------------  register(record, g+1, fence)
//	   ...until every rank is registered in g+1, and every fence is over...
//	   prepare  ----------------------------->  ...as in the first generation...
//
// A rank that still runs generation g is called again until it has found out. The last rank 0 may be cut off, and live:
// it can launch g+1 only with the acknowledgement of every survivor, as the next start can. It learns from a survivor's
// refusal, or from ranks that look at the survivor, that the survivor has left generation g.

// succession is what a rank of a later generation knows of rank 0 of the generation before.
type succession struct {
	leader Member
	lost   time.Time // when this rank had given up that rank 0; zero = every rank had cleared
	gone   bool      // the process of that rank 0 has ended
}

// fence says how long processes of the last generation may still run.
type fence struct {
	Zero time.Duration `json:"zero"` // that rank 0's own
	Rest time.Duration `json:"rest"` // those of ranks that do not register as survivors
}

// leaderFence is how long a rank 0 that a survivor has given up, and the ranks that still follow it, may run their
// commands. It notices that the survivor has left, asks the other ranks, ends its command, and orders the ranks that it
// still reaches to clear; a rank that it has lost by then ends within fenceTime.
const leaderFence = noticeTime + lossGrace + time.Second + askTimeout + commandTime + fenceTime

func (s *succession) fence() *fence {
	f := &fence{}
	if s.lost.IsZero() {
		return f
	}
	f.Rest = max(0, time.Until(s.lost.Add(leaderFence)))
	if !s.gone {
		f.Zero = f.Rest
	}
	return f
}

// restarts reports whether the job may go on in a later generation.
func (n *Node) restarts() bool { return n.cfg.Rejoin || n.cfg.last != nil || n.up.text != nil }

// succession returns what the next node of this rank must know of its rank 0; nil = it follows no other start of it.
func (n *Node) succession() *succession {
	declared := n.up.spares == 0 && (n.cfg.last != nil || n.cfg.Generation <= 1 && n.self.Rank > 0)
	if !declared || n.lead != nil || !n.restarts() || len(n.roster.Members) == 0 {
		return nil
	}
	s := &succession{leader: n.roster.Members[0]}
	if n.hasLost() {
		s.lost, s.gone = time.Now(), n.up.leaderGone
	}
	return s
}

// hasLost reports whether this rank has given up its rank 0.
func (n *Node) hasLost() bool {
	var lost *LostError
	return n.phase == Ended && errors.As(n.outcomeErr, &lost)
}

// hasLeft reports whether this rank has no part in generation g any more.
func (n *Node) hasLeft(g uint64) bool {
	if n.self.Rank == 0 && n.isOver(g) {
		return true
	}
	return g < n.Generation() || n.hasLost()
}

// maySucceed reports whether a greeting of an earlier generation is that of the next start of rank 0.
func (u *uplink) maySucceed(m message) bool {
	last, r := u.n.cfg.last, m.Record
	return last != nil && u.n.phase == Gathering && u.n.lead == nil && !u.n.isGathered() &&
		m.generation() < u.n.Generation() && r != nil && r.Rank == 0 && r.Nonce != last.leader.Nonce
}

// isOutrun ends the last rank 0 while this rank follows its next start. Both would take each other for a second rank 0,
// and when the next start is lost in turn, the last one would take its place.
func (u *uplink) isOutrun(w *wire, r *Record) bool {
	last := u.n.cfg.last
	if last == nil || r == nil || r.Nonce != last.leader.Nonce || u.wire == nil || u.leader.Nonce == r.Nonce {
		return false
	}
	w.send(message{Type: refuse, Last: true, Reason: "the next start of rank 0 has its place"})
	return true
}

// contendsWithLast reports whether r is another start of rank 0 than the last leader, and no rank 0 is connected yet in
// this generation. When a rank 0 returns from a network partition, it and its next start both greet every rank between
// two generations: if each rank followed the first greeting, both would wait for the other's ranks until the timeout.
func (u *uplink) contendsWithLast(r *Record) bool {
	return u.lastLeader != nil && r != nil && r.Rank == 0 && r.Nonce != u.lastLeader.Nonce && u.wire == nil &&
		u.n.phase == Gathering
}

// askLastLeader refuses the greeting of another start of rank 0 if the last leader answers a look. Otherwise it handles
// the greeting once more, unless that connection has ended.
func (u *uplink) askLastLeader(w *wire, m message, remote net.Addr) {
	last, g := u.lastLeader, u.n.Generation()
	u.n.wg.Go(func() {
		ctx, cancel := context.WithTimeout(u.n.ctx, lookTimeout)
		defer cancel()
		err := u.n.sees(ctx, last, g, true)
		u.n.post(func() {
			if err == nil {
				w.send(message{Type: refuse, Generation: g, Reason: bothClaim(last, m.Record).Error()})
				return
			}
			u.lastLeader = nil
			u.n.probe(w, func(alive bool) {
				if alive {
					u.greeted(w, m, remote)
				}
			})
		})
	})
}

// addSuccession adds to a registration what the next start of rank 0 must know.
func (u *uplink) addSuccession(m *message, greeting *Record) {
	if g := u.n.Generation(); g > 1 {
		m.Generation = g
	}
	// A rank whose place another container had in the last generation is no survivor of that.
	if last := u.n.cfg.last; last != nil && u.n.phase == Gathering && greeting != nil &&
		greeting.Nonce != last.leader.Nonce && u.n.Generation() == u.n.cfg.Generation {
		m.Fence, m.Text = last.fence(), u.n.cfg.Text
	}
}

var errStartedAgain = errors.New("its container was started again")

// provesGone reports whether an error of a call to the address of a container proves that its process has ended.
func provesGone(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || isElse(err) || errors.Is(err, errStartedAgain)
}

// sees returns why a start of a container does not answer, or has no part in a generation any more. asks is false in a
// job that cannot restart: there a login is enough.
func (n *Node) sees(ctx context.Context, r *Record, generation uint64, asks bool) error {
	if !asks {
		return n.cfg.try(ctx, r)
	}
	a, err := n.exchange(ctx, r.ID, r.Addr, message{Type: look, Record: r, Name: r.Nonce, Generation: generation})
	switch {
	case err != nil:
		return err
	case a.Type != seen:
		return errors.New("it gives no answer")
	case a.Name != r.Nonce:
		return errStartedAgain
	case !a.Alive:
		return errors.New("it has left this generation")
	}
	return nil
}

// onOvertaken handles the refusal of a rank that goes on without this rank 0.
func (c *coordinator) onOvertaken(t *target, w *wire, reason string) {
	t.err = errors.New(reason)
	w.abort()
	if t.link == nil || t.link == w {
		c.lose(t, reason)
		t.gone = true
	}
}

// onOutrun ends a rank 0 that was cut off, and the ranks that still follow it.
func (c *coordinator) onOutrun(t *target, reason string) {
	reason = fmt.Sprintf("%s goes on without this container: %s", c.nameOf(t), reason)
	c.n.setGathered(&EndedError{Outcome{Status: c.n.cfg.Status.Retry, Reason: reason}})
}

// preferSurvivor gives a rank of the last generation its place, in which a container sits that was not in it.
func (c *coordinator) preferSurvivor(r *Record, generation uint64) {
	t := c.targets[r.ID]
	if !c.n.cfg.Rejoin || generation < c.n.Generation() || t == nil || t.link == nil || t.rec == nil ||
		t.survives || t.rec.Nonce == r.Nonce {
		return
	}
	w := t.link
	c.unregister(t, w, errors.New("a container that was in the last generation has come"))
	w.abort()
}

// mayFindOut puts off a rank that runs the last generation, and will find out that its rank 0 is gone.
func (c *coordinator) mayFindOut(t *target, w *wire, m message) bool {
	if !c.n.cfg.Rejoin || c.n.self.Rank != 0 || m.Record.Rank < 1 || m.State != Running {
		return false
	}
	t.err = errors.New("it has not given up the last rank 0 yet")
	c.putOff(w)
	return true
}

// onOtherGeneration handles a registration in another generation than that of this rank 0, which adopts a later one.
func (c *coordinator) onOtherGeneration(t *target, w *wire, m message) {
	switch g := m.generation(); {
	case g < c.n.Generation() && w.greeted == c.n.Generation():
		w.abort()
		return
	case g <= c.n.Generation(): // it answers an earlier greeting, and does not know the text
	case m.Fence == nil || !c.n.cfg.Rejoin:
		c.n.setGathered(&EndedError{c.earlier(m.Record)})
		return
	default:
		text, wait := m.Text, c.n.cfg.Timeout
		if c.n.cfg.Adopt != nil {
			var err error
			if text, wait, err = c.n.cfg.Adopt(m.Text); err != nil {
				t.err = fmt.Errorf("it cannot tell of the last generation: %w", err)
				w.abort()
				return
			}
		}
		c.adopt(g, text)
		c.n.extend(wait)
	}
	w.send(c.hello())
	w.greeted = c.n.Generation()
}

// adopt goes on with a later generation. The ranks that are here are greeted again.
func (c *coordinator) adopt(g uint64, text []byte) {
	c.n.log.Info("rank 0's container has started again", "phase", "gather", "generation", g)
	c.n.generation.Store(g)
	c.n.cfg.Text = text
	for _, t := range c.targets {
		if w := t.link; w != nil && t.rec != nil {
			w.send(message{Type: waiting}) // a roster that it has acknowledged is void
			c.unregister(t, w, errors.New("it has to register in the generation of the job"))
			w.send(c.hello())
			w.greeted = g
		}
	}
}

func (c *coordinator) earlier(r *Record) Outcome {
	reason := fmt.Sprintf("%s runs a launch of an earlier rank 0, which is gone", r.display())
	return Outcome{Status: c.n.cfg.Status.Retry, Reason: reason}
}

// noteFence notes how long processes of the last generation may still run.
func (c *coordinator) noteFence(t *target, f *fence) {
	if t.survives = f != nil; !t.survives {
		return
	}
	later := func(at *time.Time, d time.Duration) {
		if d = min(d, leaderFence); time.Now().Add(d).After(*at) {
			*at = time.Now().Add(d)
		}
	}
	later(&c.zeroOver, f.Zero)
	later(&c.restOver, f.Rest)
}

// unproven is what a launch waits for whose ranks are all present, while processes of the last generation may still
// run.
func (c *coordinator) unproven() []Missing {
	if !time.Now().Before(c.fenced) {
		return nil
	}
	return []Missing{{
		Rank: -1, Name: fmt.Sprintf("proof that generation %d has ended", c.n.Generation()-1),
		Reason: fmt.Sprintf("certain %s after the loss of rank 0", joblog.Seconds(leaderFence)),
	}}
}

// isFenced reports whether processes of the last generation may still run. It then sees to another tryPrepare.
func (c *coordinator) isFenced() bool {
	over := c.zeroOver
	for _, t := range c.targets {
		if t.rec != nil && !t.survives && c.restOver.After(over) {
			over = c.restOver
		}
	}
	left := time.Until(over)
	if left <= 0 {
		return false
	}
	if !c.fenced.Equal(over) {
		c.fenced = over
		c.n.log.Info("waiting until the last generation cannot run any more", "phase", "gather",
			"left", left.Round(time.Second))
		c.n.after(left, func() {
			if c.n.lead == c {
				c.tryPrepare()
			}
		})
	}
	return true
}
