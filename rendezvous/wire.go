package rendezvous

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"
)

// message is what goes over a control connection. What every launch sends to and from every rank is packed; the rest, which is
// rare, is JSON.
type message struct {
	Type   kind        `json:"-"`
	Record *Record     `json:"-"`
	Epoch  uint64      `json:"-"`
	Hash   string      `json:"-"`
	Roster *Roster     `json:"-"`
	State  Phase       `json:"-"`
	Parent *parentRank `json:"-"`

	Looking bool `json:"-"` // the record has no Fabric yet

	Missing []Missing    `json:"missing,omitempty"`
	Present int          `json:"present,omitempty"`
	Outcome *Outcome     `json:"outcome,omitempty"`
	Reason  string       `json:"reason,omitempty"`
	Signal  int          `json:"signal,omitempty"`
	After   int64        `json:"after,omitempty"` // of an end: nanoseconds by the sender's Clock
	Clock   int64        `json:"clock,omitempty"` // nanoseconds since the start of the sender's node
	Stopped bool         `json:"stopped,omitempty"`
	Call    uint64       `json:"call,omitempty"` // of inquiries and barriers: chosen by the one who asks
	Name    string       `json:"name,omitempty"`
	Ranks   []RankStatus `json:"ranks,omitempty"`
	Now     time.Time    `json:"now,omitzero"` // by the clock that the ranks' times are of; no other time of day goes over the wire
	Alive   bool         `json:"alive,omitempty"`
	Last    bool         `json:"last,omitempty"`
	Size    int          `json:"size,omitempty"` // of the job, in register where rank 0 has another one

	ref    *Record // both sides know it: Record is packed as the difference
	packed []byte  // Roster, where it is sent to many
	whole  []byte  // the message itself, where it is the same for many
}

// parentRank is from whom a rank gets the table in a large job.
type parentRank struct {
	ID   string
	Addr netip.AddrPort
}

type kind byte

const (
	_        kind = iota
	hello         // from the one who dialled: its record; epoch = size of the job
	register      // the answer: record, state, epoch of the roster held, size if it is another one
	refuse        // either side: reason; the connection ends
	waiting       // rank 0 tells who is missing
	prepare       // epoch, hash, and the roster or from whom to fetch it
	ack           // epoch and hash, as held by this rank
	launched      // go: epoch
	started       // the answer to go
	stop          // a rank asks rank 0 to end the job, or rank 0 orders it: signal, reason
	// A rank tells rank 0 how its command ended: outcome, after, clock; or why it leaves before the launch: outcome;
	// record = the leaving rank's, where another rank passes it on.
	ended
	done // outcome; last = no bye follows
	doneAck
	inquiry  // a rank asks rank 0: call, name of a barrier or "" for all ranks
	answer   // call, ranks or missing
	arrive   // at a barrier: call, name
	leave    // call, name
	release  // call
	released // the answer to release
	bye      // everybody knows the outcome: leave
	here     // from a rank that waits for rank 0's call, to anybody, who passes it on: its record
	lead     // the answer: rank 0's record, if it is known; name = nonce of who answers, where that is not rank 0
	look     // do you see this rank, and what do you know of the end: record
	seen     // the answer: alive or reason; state, hash, outcome; name = nonce of who answers
	fetch    // a rank wants the roster of a hash, from another one or from rank 0
	table    // the answer: roster
	clock    // rank 0 asks a rank for its clock: call; the answer: call, clock
	ping     // does your process still answer?
	pong
)

// A roster of 4,000 ranks takes about 200 KB; the JSON of their status 1 MB.
const maxMessage = 8 << 20

// wire is one control connection: messages out through a queue, so that a slow peer never holds up the loop that sends.
type wire struct {
	rwc  io.ReadWriteCloser
	mu   sync.Mutex
	cond sync.Cond // queue, writing or shut changed
	out  []message
	busy bool
	shut bool
	wg   sync.WaitGroup
	ref  *Record // of the records that come in answer to a greeting

	local netip.Addr     // of this container on the connection; invalid where the connection does not tell
	said  netip.AddrPort // where the other end believes to be, by its registration; the loop's own
}

// newWire takes over a connection; ref is the record that was, or will be, sent in the greeting.
func newWire(rwc io.ReadWriteCloser, ref *Record) *wire {
	w := &wire{rwc: rwc, ref: ref}
	if c, ok := rwc.(interface{ LocalAddr() net.Addr }); ok {
		if at, err := netip.ParseAddrPort(c.LocalAddr().String()); err == nil {
			w.local = at.Addr().Unmap().WithZone("")
		}
	}
	w.cond.L = &w.mu
	w.wg.Go(w.write)
	return w
}

func (w *wire) send(m message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.shut {
		w.out = append(w.out, m)
		w.cond.Broadcast()
	}
}

func (w *wire) write() {
	for {
		w.mu.Lock()
		w.busy = false
		w.cond.Broadcast()
		for len(w.out) == 0 && !w.shut {
			w.cond.Wait()
		}
		if w.shut {
			w.mu.Unlock()
			return
		}
		m := w.out[0]
		w.out, w.busy = w.out[1:], true
		w.mu.Unlock()
		b, err := m.whole, error(nil)
		if b == nil {
			b, err = m.encode()
		}
		if err == nil {
			_, err = w.rwc.Write(b)
		}
		if err != nil {
			w.abort()
		}
	}
}

// flush waits until everything sent so far was handed to the connection, or the connection ended.
func (w *wire) flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for (len(w.out) > 0 || w.busy) && !w.shut {
		w.cond.Wait()
	}
}

// abort ends the connection without waiting.
func (w *wire) abort() {
	w.mu.Lock()
	was := w.shut
	w.shut = true
	w.cond.Broadcast()
	w.mu.Unlock()
	if !was {
		_ = w.rwc.Close()
	}
}

// close ends the connection and waits for the writer.
func (w *wire) close() {
	w.abort()
	w.wg.Wait()
}

// read calls handle for each message until the connection ends or handle returns an error.
func (w *wire) read(handle func(message) error) error {
	in := bufio.NewReaderSize(w.rwc, 1024)
	for {
		size, err := binary.ReadUvarint(in)
		switch {
		case errors.Is(err, io.EOF):
			return io.EOF
		case err != nil:
			return fmt.Errorf("control connection: %w", err)
		case size > maxMessage:
			return fmt.Errorf("control connection: a message of %d bytes, more than %d", size, maxMessage)
		}
		b := make([]byte, size)
		if _, err := io.ReadFull(in, b); err != nil {
			return fmt.Errorf("control connection: %w", err)
		}
		m, err := decodeMessage(b, w.ref)
		if err != nil {
			return fmt.Errorf("control connection: %w", err)
		}
		if err := handle(m); err != nil {
			return err
		}
	}
}

var errEnded = errors.New("control connection ended")
