package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"time"
)

// A firewall may let a rank reach rank 0, but not rank 0 that rank. Only rank 0 sees the failed dial, and the port is
// open or closed on that rank's host. So rank 0 says in its answer to an announcement how its last dial to the rank
// ended.

// callerTime is how long an announcement proves that a rank reaches rank 0, and the answer that rank 0 cannot reach the
// rank. A rank repeats it every 8 s or more often, later on an overloaded host.
const callerTime = 30 * time.Second

// caller notes the announcements that come from a rank itself.
type caller struct {
	nonce        string
	first, again time.Time
}

// isBlocked reports whether err may come from a firewall: no program answered.
func isBlocked(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EHOSTUNREACH) ||
		errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, syscall.ETIMEDOUT) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
}

// onCaller notes that a rank reaches this container. It returns why this container does not reach that rank, as text
// for it; "" = no dial to it has failed since it began to call.
func (c *coordinator) onCaller(r *Record) string {
	t := c.targets[r.ID]
	if t == nil || t.rec != nil {
		return ""
	}
	if now := time.Now(); t.caller.nonce == r.Nonce {
		t.caller.again = now
	} else {
		t.caller = caller{nonce: r.Nonce, first: now, again: now}
	}
	if !t.isBlocked(time.Now()) {
		return ""
	}
	text := cause(t.err)
	if at := addressIn(t.err); at.IsValid() {
		text += fmt.Sprintf(" at %v", at)
	}
	return text
}

// isBlocked reports whether the rank reaches this container at that time, and this container cannot connect to it. A
// dial that failed before the rank began to call says nothing, because the rank had not started.
func (t *target) isBlocked(at time.Time) bool {
	return t.rec == nil && isBlocked(t.err) && !t.caller.first.IsZero() && t.failed.After(t.caller.first) &&
		at.Sub(t.caller.again) < callerTime
}

// judged returns the time at which a reason must hold. After the deadline that is the deadline: a machine that stood
// still over it has received nothing since.
func (n *Node) judged() time.Time {
	now := time.Now()
	if d := n.deadline(); !d.IsZero() && d.Before(now) {
		return d
	}
	return now
}

// blockedReason is why a rank that calls rank 0 is missing; every rank prints it.
func (t *target) blockedReason() string {
	port := "port"
	if at := addressIn(t.err); at.IsValid() {
		port = fmt.Sprintf("%d/tcp", at.Port())
	}
	return fmt.Sprintf("it reaches rank 0, but rank 0 cannot connect to its %s: %s", port, cause(t.err))
}

// blockedError says that rank 0 cannot connect to this container.
type blockedError struct {
	own   netip.AddrPort
	cause string // by rank 0
}

func (e *blockedError) Error() string {
	return fmt.Sprintf("rank 0 cannot connect to %d/tcp of this container: %s; is the port open here?",
		e.own.Port(), e.cause)
}

func (e *blockedError) Is(target error) bool { return target == errSilent }

// noteAnswer stores what rank 0 said in an answer to an announcement.
func (u *uplink) noteAnswer(reason string) {
	u.blocked = nil
	if reason != "" {
		u.blocked, u.blockedAt = &blockedError{u.n.self.Addr, reason}, time.Now()
	}
}

// whyBlocked returns why rank 0 cannot connect, as rank 0 said a moment ago; nil = it has not said so.
func (u *uplink) whyBlocked() error {
	if u.blocked == nil || u.n.judged().Sub(u.blockedAt) > callerTime {
		return nil
	}
	return u.blocked
}
