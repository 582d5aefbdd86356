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

// message is what goes over a control connection; kind says which fields each message has. What every launch sends to and from
// every rank is packed (pack.go); the rest, which is rare, is JSON.
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

// parentRank is the rank that passes the roster on to another one in a large job.
type parentRank struct {
	ID   string
	Addr netip.AddrPort
}

type kind byte

// The messages. The first word of a comment says who sends it; what follows a colon are the fields that it fills.
const (
	_ kind = iota

	// The registration, on a connection that rank 0 has dialled.
	hello    // rank 0 greets: Record; Epoch = size of the job
	register // a rank answers: Record, Looking, State, Epoch of the roster that it holds, Size where it was told another one
	refuse   // either side ends the connection: Reason; Record of the sender where the reason is that another one leads

	// The commit.
	waiting  // rank 0 says which ranks are missing: Missing, Present; a roster that was acknowledged is void
	prepare  // rank 0 sends the roster: Epoch, and Roster, or Hash with Parent, the rank to fetch it from
	ack      // a rank holds the roster: Epoch, Hash
	launched // rank 0 says go: Epoch
	started  // a rank has acted on go: Epoch

	// The end.
	stop    // either side: the receiver shall end what it is responsible for, rank 0 the job, a rank its command: Signal, Reason
	ended   // a rank: its own part has ended: Outcome, After, Clock, Stopped; before the launch: it leaves; Record = the rank that leaves, if passed on
	done    // rank 0: the job has ended: Outcome; Last = no bye follows; Record of rank 0 in the answer to here
	doneAck // a rank knows the end, or keeps what another one said when it left

	// Questions of a rank to rank 0, and barriers. Call is chosen by the rank, and comes back in the answer.
	inquiry  // a rank asks for all ranks, or, with Name, for those that are absent at a barrier: Call
	answer   // rank 0: Call, and Ranks with Now, or Missing
	arrive   // a rank calls a barrier: Call, Name
	leave    // a rank takes a call back: Call, Name
	release  // rank 0: every rank has called: Call
	released // a rank has seen the release: Call

	bye // rank 0: every rank knows the end: leave

	// Questions over connections that are dialled for them, to any rank.
	announce // a rank waits for rank 0's call; who is not rank 0 passes it on: Record
	lead     // the answer: Record of rank 0, if it is known; Name = nonce of the sender, where it is not rank 0
	look     // a rank asks whether the receiver sees another one: Record; Last = the receiver gives the verdict on rank 0, Outcome if the sender knows it
	seen     // the answer: Alive or Reason, State, Hash, Outcome if it is known; Name = nonce of the sender
	fetch    // a rank wants a roster: Hash
	table    // the answer: Roster

	clock // rank 0 asks for a rank's clock: Call; the answer has Clock, too
	ping  // either side asks whether the other one's process still answers
	pong  // it does
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
