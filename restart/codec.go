package restart

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"time"
)

// MaxEncoded is the maximum size of an encoded history, in bytes.
const MaxEncoded = 16 << 10

// encoded is a history between two ranks.
type encoded struct {
	state
	Ended int64 `json:"ended"` // Unix time in ns
}

// Encode returns the history for another rank, in at most [MaxEncoded] bytes.
func (h *History) Encode() []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // it would multiply the size of a text by six
	wire := encoded{state: h.state}
	if h.state.Ends > 0 {
		wire.Ended = h.ended.UnixNano()
	}
	if err := enc.Encode(wire); err != nil { // it has only numbers and text
		panic("encoding a history of restarts: " + err.Error())
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// Decode reads the history that a rank with the same policy has encoded. It refuses what [History.Encode] cannot
// return, for example because the peer lies.
func Decode(p Policy, b []byte) (*History, error) {
	if len(b) > MaxEncoded {
		return nil, fmt.Errorf("reading a history of restarts: it has %d bytes, more than %d", len(b), MaxEncoded)
	}
	var wire encoded
	if err := json.Unmarshal(b, &wire); err != nil {
		return nil, fmt.Errorf("reading a history of restarts: %w", err)
	}
	if err := wire.check(); err != nil {
		return nil, fmt.Errorf("reading a history of restarts: %w", err)
	}
	h := &History{policy: p, state: wire.state}
	if h.state.Ends > 0 {
		h.ended = time.Unix(0, wire.Ended)
	}
	return h, nil
}

// check returns an error unless Add and Resumed can lead to this state.
func (s *state) check() error {
	again := s.Why == ""
	restarts := s.Ends // one after each end, except a last one
	if s.Ends > 0 && !again {
		restarts--
	}
	switch {
	case s.Ends > maxCount || len(s.Kept) != min(s.Ends, keptFirst+keptLast):
		return fmt.Errorf("%d ends, of which %d are kept", s.Ends, len(s.Kept))
	case s.Total != restarts, s.Used < 0 || s.Used > s.Total:
		return fmt.Errorf("%d restarts, %d of them used, after %d ends", s.Total, s.Used, s.Ends)
	case s.Crashes < 0 || s.Crashes > s.Ends, s.Stalls < 0 || s.Stalls > s.Ends:
		return fmt.Errorf("%d crashes and %d stalls in %d ends", s.Crashes, s.Stalls, s.Ends)
	case !regexp.MustCompile(`^([0-9a-f]{16})?$`).MatchString(s.Progress):
		return fmt.Errorf("%q is not a progress", s.Progress)
	case s.Of < Unlimited || s.Of > maxCount, s.Delay < 0, !again && s.Delay > 0:
		return fmt.Errorf("restart %d of %d after %v", s.Used, s.Of, s.Delay)
	case s.Why != clean(s.Why, maxWhy), s.Ends == 0 && (!again || s.Of != 0 || s.Delay != 0):
		return errors.New("a decision without an end, or one that is not a short printable line")
	}
	for i := range s.Kept {
		if err := s.Kept[i].check(); err != nil {
			return fmt.Errorf("end %d: %w", i, err)
		}
	}
	return s.checkOrder()
}

// checkOrder returns an error unless the ends follow each other, with a restart after each but perhaps the last.
func (s *state) checkOrder() error {
	for i, e := range s.Kept {
		isLast := i == len(s.Kept)-1
		restarted := !isLast || s.Why == ""
		switch {
		case restarted != (e.Restart > 0), e.Restart > s.Total, isLast && restarted && e.Restart != s.Used:
			return fmt.Errorf("end %d: restart %d", i, e.Restart)
		case !restarted && (e.Next != 0 || e.Downtime != 0 || e.Clear != 0 || e.Rejoin != 0 || e.Commit != 0):
			return fmt.Errorf("end %d: generation %d without a restart", i, e.Next)
		case e.Next != 0 && e.Next <= e.Generation, !isLast && s.Kept[i+1].Generation < e.following():
			return fmt.Errorf("end %d: generations %d and %d in the wrong order", i, e.Generation, e.Next)
		}
	}
	return nil
}

// check returns an error unless e can be an end.
func (e *entry) check() error {
	whole := End{
		Generation: e.Generation, Status: e.Status, Rank: e.Rank, Name: e.Name, Cause: e.Cause, Kind: e.Kind,
		Stopped: e.Stopped, Ran: e.Ran,
	}.entry()
	whole.Restart, whole.Next = e.Restart, e.Next
	whole.Downtime, whole.Clear, whole.Rejoin, whole.Commit = e.Downtime, e.Clear, e.Rejoin, e.Commit
	switch {
	case whole != *e:
		return fmt.Errorf("%+v has values that no end has", *e)
	case e.Restart < 0, e.Next < 0 || e.Next > maxCount:
		return fmt.Errorf("restart %d, generation %d", e.Restart, e.Next)
	case e.Downtime < 0, e.Clear < 0, e.Rejoin < 0, e.Commit < 0:
		return errors.New("a negative duration")
	}
	return nil
}
