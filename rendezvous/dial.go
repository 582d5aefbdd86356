package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"
)

func (c *coordinator) addTarget(key string, peer *Peer, announced netip.AddrPort) *target {
	if t, ok := c.targets[key]; ok {
		if announced.IsValid() {
			t.moveTo(announced)
		}
		return t
	}
	// A seed's address that is being dialled may be the same container, and two connections to one rank end each other.
	if t, ok := c.targets["@"+announced.String()]; ok && t.rec == nil && announced.IsValid() {
		t.rouse()
		return t
	}
	t := &target{
		key: key, peer: peer, wake: make(chan struct{}, 1), announced: announced, begun: time.Now(),
		released: make(map[uint64]bool),
	}
	if !strings.HasPrefix(key, "@") {
		t.id = key
	}
	t.ctx, t.drop = context.WithCancel(c.ctx)
	c.targets[key] = t
	if announced.IsValid() && t.id != "" { // the address of a seed comes from the DNS
		t.noteHeard()
	}
	c.n.wg.Go(func() { c.keep(t) })
	return t
}

// keep dials a target until the job is over, and serves each connection to its end.
func (c *coordinator) keep(t *target) {
	var b backoff
	for {
		served, err := c.reach(t)
		if t.ctx.Err() != nil {
			return
		}
		c.n.post(func() { c.onUnreachable(t, err, served) })
		if served {
			b.reset()
		}
		select {
		case <-t.ctx.Done():
			return
		case <-t.wake:
			b.reset()
		case <-time.After(b.wait()):
		}
	}
}

// reach dials the addresses of a target and serves the first connection to its end.
func (c *coordinator) reach(t *target) (served bool, err error) {
	addrs, err := c.candidates(t)
	if err != nil || len(addrs) == 0 {
		return false, err
	}
	rwc, addr, err := c.dialAny(t, addrs)
	if err != nil {
		return false, err
	}
	return true, c.serve(t, rwc, addr)
}

// LoginPatience returns how much longer than usual a login to a container of a job of that size may take. If all ranks
// start at once and share few processors, both sides of each login wait for a processor for seconds, several times. A
// login that is given up has cost as much as one that succeeds, and begins anew: with a fixed limit, 1,000 ranks on two
// slow processors did nothing else. An unknown size counts as 0.
func LoginPatience(size int) time.Duration {
	const ranks = 20 // that log in within a second, on slow processors
	return min(time.Duration(max(size, 0)/ranks)*time.Second, time.Minute)
}

// dialAny dials the addresses in order, the next one as soon as one fails or stays silent: a container behind a NAT
// announces an unreachable address, and the environment's address may be outdated. It dials an address that gossip
// brings meanwhile at once, because an unrelated program may hold the port, accept, and stay silent for all of
// callTimeout. If another program or a container of another job answers, the target may listen on the next port.
func (c *coordinator) dialAny(t *target, addrs []netip.AddrPort) (io.ReadWriteCloser, netip.AddrPort, error) {
	ctx, cancel := context.WithTimeout(t.ctx, callTimeout+LoginPatience(c.n.cfg.Size))
	defer cancel()
	type result struct {
		rwc  io.ReadWriteCloser
		addr netip.AddrPort
		err  error
	}
	results := make(chan result)
	var err error
	started, ended, above := 0, 0, 0
	dialNext := func() {
		a := addrs[started]
		started++
		c.n.wg.Go(func() {
			rwc, err := c.n.cfg.Dial(ctx, t.id, a)
			results <- result{rwc, a, err}
		})
	}
	woken := false
	dialNext()
	for ended < len(addrs) {
		var next <-chan time.Time
		if started < len(addrs) {
			next = time.After(nextAddress)
		}
		select {
		case <-next:
			dialNext()
		case <-t.wake:
			if a := t.heardAt(); a.IsValid() && !slices.Contains(addrs, a) {
				addrs = slices.Insert(addrs, started, a)
				dialNext()
			} else {
				woken = true
			}
		case r := <-results:
			ended++
			if r.err == nil {
				open := started - ended
				c.n.wg.Go(func() { // close the connections that succeed later
					for range open {
						if r := <-results; r.err == nil {
							_ = r.rwc.Close()
						}
					}
				})
				return r.rwc, r.addr, nil
			}
			// The error of the first address tells most, unless another container of the job answered at a later one.
			if err == nil || r.addr == addrs[0] || isIncompatible(r.err) {
				err = fmt.Errorf("%v: %w", r.addr, r.err)
			}
			if next, ok := nextPort(r.addr, r.err); ok && above < portTries && !slices.Contains(addrs, next) {
				above++
				addrs = slices.Insert(addrs, started, next)
			}
			if started < len(addrs) {
				dialNext()
			}
		}
	}
	if woken { // keep dials again at once
		t.rouse()
	}
	return nil, netip.AddrPort{}, err
}

// heardAt returns the address that gossip tells; it is invalid if gossip has told none.
func (t *target) heardAt() netip.AddrPort {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.announced
}

// moveTo stores an address that gossip tells and has it dialled without waiting for the back-off.
func (t *target) moveTo(a netip.AddrPort) {
	t.mu.Lock()
	t.announced = a
	t.mu.Unlock()
	t.noteHeard()
	t.rouse()
}

func (t *target) rouse() { offer(t.wake, struct{}{}) }

// candidates returns the addresses of a target: the announced one, then those of the environment.
func (c *coordinator) candidates(t *target) ([]netip.AddrPort, error) {
	var addrs []netip.AddrPort
	if announced := t.heardAt(); announced.IsValid() {
		addrs = append(addrs, announced)
	}
	if t.peer == nil {
		return addrs, nil
	}
	found, err := t.peer.addrs(c.n)
	if err != nil && len(addrs) == 0 {
		return nil, err
	}
	t.noteResolved(found)
	for _, a := range found {
		if !slices.Contains(addrs, a) {
			addrs = append(addrs, a)
		}
	}
	return addrs, nil
}

func (c *coordinator) serve(t *target, rwc io.ReadWriteCloser, addr netip.AddrPort) error {
	w := newWire(rwc, &c.n.self)
	defer w.close()
	defer context.AfterFunc(t.ctx, w.abort)()
	silent := time.AfterFunc(c.n.cfg.scaled(registerTimeout), w.abort)
	defer silent.Stop()
	c.n.post(func() { c.greet(t, w) })
	err := w.read(func(m message) error {
		var said netip.AddrPort
		if m.Type == register && m.Record != nil {
			silent.Stop()
			if m.Record.Addr.Addr() != addr.Addr() {
				m.Record.Network = "" // Network belongs to another address
			}
			said, m.Record.Addr = m.Record.Addr, addr // the address that worked counts
		}
		if !c.n.post(func() {
			if said.IsValid() {
				w.said = said
			}
			c.onTarget(t, w, m)
		}) {
			return errEnded
		}
		return nil
	})
	c.n.post(func() { c.onLost(t, w, err) })
	return err
}

func (c *coordinator) onUnreachable(t *target, err error, served bool) {
	if c.n.lead != c || c.targets[t.key] != t {
		return
	}
	if !served {
		c.askName(t)
		t.err, t.tried, t.rival, t.failed = err, true, false, time.Now()
		t.dialled.note(err)
		if isIncompatible(err) {
			t.incompatible = err
		}
		resolved := time.Now()
		if t.peer != nil {
			resolved = c.n.find.names.answered(t.peer.Host)
		}
		t.foreign.met(err, resolved)
		c.warnForeign(t, err)
		if !t.since.IsZero() && isGone(err) {
			t.gone = true
		}
		c.wakeAbsentWaiters()
		c.checkEnd()
	}
	c.checkForeign(false)
	c.tryPrepare()
}

// isGone reports whether err means that the container has left its address, rather than that the address is slow.
func isGone(err error) bool {
	return isElse(err) || errors.Is(err, syscall.ECONNREFUSED) ||
		errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH)
}

// checkForeign ends the wait when every missing rank is foreign, after a pause in which they can find the same. In a
// later generation the ranks have shared a secret and a job: a container of another job may have got the address of a
// lost rank, whose next start is still to come.
func (c *coordinator) checkForeign(lingered bool) {
	if c.n.phase != Gathering || c.n.isGathered() || c.n.Generation() > 1 {
		return
	}
	e := &MissingError{Present: c.present(), Size: c.n.cfg.Size, Missing: c.n.missing()}
	switch err := e.end(); {
	case err == nil:
	case lingered:
		c.n.setGathered(err)
	case !c.lingers:
		c.lingers = true
		c.n.wg.Go(func() {
			// They may share processors with this rank, and look for rank 0 less often where processors are short.
			c.n.pace.sleep(c.n.ctx, c.n.gathered, foreignLinger)
			c.n.post(func() {
				if c.n.lead == c {
					c.lingers = false
					c.checkForeign(true)
				}
			})
		})
	}
}

// warnForeign warns of a container that answers in place of a rank and has another secret, version or job. A container
// of an earlier attempt may end later than this one starts, so a job gets some time first.
func (c *coordinator) warnForeign(t *target, err error) {
	if c.n.isGathered() {
		return
	}
	message := ""
	switch {
	case errors.Is(err, ErrOtherVersion):
		message = "a container with another version of paiinit answers"
	case errors.Is(err, ErrOtherSecret):
		message = "a container with another secret answers"
	case errors.Is(err, ErrOtherJob) && time.Since(t.foreign.since) >= secretProofTime:
		message = "a container of another job or attempt answers"
	default:
		return
	}
	c.n.refused.warn(t.key, message, "peer", c.nameOf(t), "reason", explain(err))
}
