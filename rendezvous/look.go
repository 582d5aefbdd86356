package rendezvous

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// onPromise notes that rank 0 has acknowledged an announcement, and dials this rank. blocked is why its dials fail.
func (u *uplink) onPromise(r *Record, blocked string) {
	if u.n.lead == nil && r.Rank == 0 && r.Nonce != u.n.self.Nonce {
		u.promised = time.Now()
		u.noteAnswer(blocked)
	}
}

// isCalled reports whether rank 0 is connected, or has acknowledged an announcement a moment ago and will connect.
func (u *uplink) isCalled() bool {
	return u.wire != nil || !u.promised.IsZero() && time.Since(u.promised) < promiseTime
}

// promiseTime is how long a rank waits for rank 0 after rank 0 has acknowledged an announcement.
const promiseTime = 5 * time.Second

// lookForLeader finds out why rank 0 does not connect. A call that reaches rank 0 costs it a login, so calls become
// rarer while they find nothing else; calls that reach nothing cost little.
func (u *uplink) lookForLeader() {
	const first, again = 250 * time.Millisecond, time.Second
	b := backoff{next: again, most: 8 * again}
	pause, factor := max(first, u.n.cfg.AskAfter), lateFactor
	for {
		// All ranks may be waiting for the same rank 0: together they call it at most about 200 times a second.
		share := rand.N(time.Duration(u.n.cfg.Size+1) * 5 * time.Millisecond)
		if !u.n.pace.sleepFor(u.n.ctx, u.n.gathered, pause+share, factor) {
			return
		}
		pause = again
		called := false
		if !u.n.ask(func() { called = u.isCalled() }) {
			return
		}
		if called {
			continue
		}
		reached, err := u.lookOnce()
		if err != nil {
			u.leaveIncompatible(err)
		}
		if reached {
			pause = b.wait()
		} else {
			b.next = again
		}
		factor = lateFactor
		u.n.ask(func() {
			if !u.foreign.since.IsZero() { // rank 0 may find the same, and leaves soon after
				factor = 1
			}
		})
	}
}

// lookOnce announces this container at all places where rank 0 may be, at once, and notes why rank 0 does not connect.
// hopeless is a reason for which waiting does not help. reached reports that a login was begun at one of the places.
func (u *uplink) lookOnce() (reached bool, hopeless error) {
	places, sure := u.leaderPlaces()
	if len(places) == 0 {
		return false, nil
	}
	type found struct {
		addr   netip.AddrPort
		answer message
		err    error
	}
	results := make([][]found, len(places))
	var wg sync.WaitGroup
	question := u.n.announcement()
	for i, p := range places {
		wg.Go(func() {
			addrs, err := p.addrs(u.n)
			if err != nil {
				results[i] = []found{{err: err}}
			}
			for _, a := range addrs {
				answer, err := u.n.exchange(u.n.ctx, p.ID, a, question)
				f := found{a, answer, err}
				for range portTries {
					next, ok := nextPort(a, err)
					if !ok || p.Rank != 0 {
						break
					}
					a = next
					if answer, err = u.n.exchange(u.n.ctx, p.ID, a, question); err == nil {
						f = found{a, answer, nil}
					}
				}
				results[i] = append(results[i], f)
			}
		})
	}
	wg.Wait()
	others, ours := 0, false
	var other error // the container that answers in place of rank 0
	var resolved time.Time
	var reason error
	var outcome *Outcome
	var leader *Record
	blocked, answered := "", false // rank 0's answer
	for i, p := range places {
		for _, f := range results[i] {
			// A login that was cut off by its timeout has cost as much as a complete one.
			login := f.err == nil || errors.Is(f.err, ErrOtherContainer) || errors.Is(f.err, context.DeadlineExceeded)
			reached = reached || (p.Rank == 0 || !sure) && f.addr.IsValid() && login
			located := fmt.Errorf("%v: %w", f.addr, f.err)
			switch {
			case p.Rank != 0 && sure:
			case f.addr.IsValid() && f.err == nil:
				ours = true
			case isForeign(f.err):
				others++
				other, resolved = located, u.n.find.names.answered(p.Host)
			}
			switch {
			case !f.addr.IsValid():
				if p.Rank == 0 || reason == nil {
					reason = f.err
				}
			case f.err == nil && p.Rank == 0:
				reason = fmt.Errorf("%v: %w; is %d/tcp open here?", f.addr, errSilent, u.n.self.Addr.Port())
				if f.answer.Type == lead {
					blocked, answered = f.answer.Reason, true
				}
			case f.err == nil: // this container may know more than the next
			case p.Rank == 0, isForeign(f.err): // of the other containers nothing is known
				reason = located
			}
			switch f.answer.Type {
			case done:
				outcome = f.answer.Outcome
			case lead:
				leader = f.answer.Record
			}
		}
	}
	u.n.ask(func() {
		u.lookErr = reason
		u.dialled.note(reason)
		if answered {
			u.noteAnswer(blocked)
		}
		if leader != nil && leader.validate() == nil && leader.Nonce != u.n.self.Nonce {
			u.rumour = leader
		}
		switch {
		case ours || u.wire != nil:
			u.foreign.met(nil, resolved)
			u.incompatible = nil
		// rank 0, or all that answer, and none of them shares our secret and job
		case sure || others == len(places) && len(u.n.find.heard) == 0:
			u.foreign.met(cmp.Or(other, reason, errSilent), resolved)
			if isIncompatible(other) {
				u.incompatible = other
			}
		}
		switch {
		case u.wire != nil || u.n.phase != Gathering:
		case outcome != nil:
			u.n.end(*outcome)
			u.n.setFinished(*outcome, nil)
		case u.foreign.proven && u.n.Generation() == 1: // else the next start of rank 0 is still to come
			err := u.foreign.proof()
			m := Missing{Rank: 0, Name: "rank 0", Reason: explain(err), incompatible: err, proof: err}
			e := MissingError{Present: 1 + len(u.n.find.heard), Size: u.n.cfg.Size, Missing: []Missing{m}}
			hopeless = e.end()
		}
	})
	return reached, hopeless
}

// leaveIncompatible ends the wait of a foreign container after rank 0 had the time to connect and find the same.
func (u *uplink) leaveIncompatible(err error) {
	if sleep(u.n.ctx, u.n.gathered, foreignLinger) {
		u.n.post(func() {
			if u.wire == nil && u.n.phase == Gathering && u.foreign.proven {
				u.n.setGathered(err)
			}
		})
	}
}

// leaderPlaces returns where to look for a rank 0 that is not connected: where the environment or another container
// says that it is; if it is not there, at two other ranks, or at a few silent addresses of the seeds.
func (u *uplink) leaderPlaces() (places []Peer, sure bool) {
	u.n.ask(func() {
		if u.wire != nil || u.n.lead != nil || u.n.phase == Running || u.n.phase == Ended {
			return
		}
		if zero := u.n.cfg.peerZero(); zero != nil {
			places, sure = append(places, *zero), true
		}
		if r := u.rumour; r != nil {
			places, sure = append(places, peerAt(r.ID, 0, r.Addr)), true
		}
		if sure && (u.lookErr == nil || errors.Is(u.lookErr, errSilent)) {
			return
		}
		var rest []Peer
		for _, p := range u.n.cfg.Peers {
			if p.Rank != 0 && u.n.find.mayAsk(p) {
				rest = append(rest, p)
			}
		}
		if places = append(places, some(rest, 2)...); len(places) > 0 {
			return
		}
		// The first in the order leads.
		if u.n.cfg.Size > 0 && len(u.n.find.heard) > 0 && len(u.n.find.heard)+1 >= u.n.cfg.Size {
			heard := slices.Collect(maps.Values(u.n.find.heard))
			first := slices.MinFunc(heard, Record.before)
			places = append(places, peerAt(first.ID, -1, first.Addr))
			if r := heard[rand.N(len(heard))]; r.ID != first.ID {
				places = append(places, peerAt(r.ID, -1, r.Addr))
			}
		}
		for _, a := range u.n.find.silentSeeds() {
			if len(places) < 4 {
				places = append(places, peerAt("", -1, a))
			}
		}
	})
	return places, sure
}

// peerAt returns a container that the environment does not name there; rank is 0, or -1 = any but 0.
func peerAt(id string, rank int, a netip.AddrPort) Peer {
	return Peer{ID: id, Rank: rank, Host: a.Addr().String(), Port: int(a.Port())}
}
