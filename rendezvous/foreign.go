package rendezvous

import (
	"context"
	"errors"
	"os"
	"time"
)

// Another secret, another version and another job end the wait, because no retry helps. But the container that answers
// does not prove it, and may belong to an earlier job that is about to end. So it counts only if this container met
// nothing else for these times, and then again at an address that was resolved after them.
const (
	secretProofTime = 5 * time.Second
	jobProofTime    = 12 * time.Second // and versions: longer than the grace of a container of an earlier attempt
	foreignLinger   = 3 * longestPause // for the other ranks to find the same; a dial takes time, too
)

// foreign describes the container that answers at the addresses of a rank in its place.
type foreign struct {
	err    error
	since  time.Time
	proven bool // until a container of this job answers there
}

// met notes an attempt to reach the rank at an address resolved at that time; nil = a container of this job answered.
func (f *foreign) met(err error, resolved time.Time) {
	proofTime := secretProofTime
	if !errors.Is(err, ErrOtherSecret) {
		proofTime = jobProofTime
	}
	switch {
	case err == nil:
		*f = foreign{}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), f.proven:
		// a timeout says nothing, and the container that proved it may have left for the same reason
	case !isForeign(err):
		*f = foreign{}
	case f.since.IsZero() || !errors.Is(err, kindOf(f.err)):
		*f = foreign{err: err, since: time.Now()}
	default:
		f.err = err
		f.proven = !resolved.Before(f.since.Add(proofTime))
	}
}

// kindOf returns the error of Config.Dial that err wraps, if it can end a wait.
func kindOf(err error) error {
	for _, kind := range []error{ErrOtherSecret, ErrOtherVersion} {
		if errors.Is(err, kind) {
			return kind
		}
	}
	return ErrOtherJob
}

func (f *foreign) proof() error {
	if f.proven {
		return f.err
	}
	return nil
}

// end returns why the wait is over if all missing ranks are foreign, otherwise nil.
func (e *MissingError) end() error {
	job := false
	for _, m := range e.Missing {
		if m.proof == nil {
			return nil
		}
		job = job || errors.Is(m.proof, ErrOtherJob)
	}
	switch {
	case len(e.Missing) == 0:
		return nil
	case job:
		return &ConflictError{errors.New(Fold(e.Missing))}
	}
	return e
}
