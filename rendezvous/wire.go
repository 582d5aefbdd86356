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

// message is what goes over a control connection; kind says which fields each message has. What every launch exchanges
// with every rank is packed (pack.go); the rest is rare, and JSON.
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
	After   int64        `json:"after,omitempty"` // when the command ended: nanoseconds by the sender's Clock
	Clock   int64        `json:"clock,omitempty"` // nanoseconds since the start of the sender's node
	Stopped bool         `json:"stopped,omitempty"`
	Kills   int          `json:"kills,omitempty"` // processes that the kernel killed for lack of memory
	Call    uint64       `json:"call,omitempty"`  // of inquiries, barriers and clocks: chosen by the rank that asks
	Name    string       `json:"name,omitempty"`
	Ranks   []RankStatus `json:"ranks,omitempty"`
	Text    []byte       `json:"text,omitempty"`
	// The sender's time of day, in answer the clock of the ranks' times.
	Now      time.Time `json:"now,omitzero"`
	Deadline time.Time `json:"deadline,omitzero"` // of the wait for all ranks

	Alive bool    `json:"alive,omitempty"`
	Last  bool    `json:"last,omitempty"`
	Timed bool    `json:"timed,omitempty"` // an inquiry for Times
	Brief bool    `json:"brief,omitempty"` // an inquiry for Ready alone
	Ready bool    `json:"ready,omitempty"` // else Reason says why not
	Times []Times `json:"times,omitempty"`
	Size  int     `json:"size,omitempty"` // of the job, in register if it differs from rank 0's

	Generation uint64 `json:"generation,omitempty"`
	Spares     int    `json:"spares,omitempty"`
	Fence      *fence `json:"fence,omitempty"`

	ref    *Record // a record that both sides know: Record is packed as the difference to it
	packed []byte  // Roster, packed once for many ranks
	whole  []byte  // the encoded message, if many ranks get the same
}

// parentRank is the rank that passes the roster on to another one in a large job.
type parentRank struct {
	ID   string
	Addr netip.AddrPort
}

type kind byte

// The messages. A comment says who sends the message and what it means, then which fields it has.
const (
	_ kind = iota

	// The registration, on a connection that rank 0 has dialled.
	// Rank 0 greets: Record; Epoch = containers of the job; Spares; Generation, unless it is the first; Text.
	hello
	// A rank answers: Record, Looking, State, Epoch of its roster, Size if it was told another one; Generation, unless
	// it is the first; Fence and Text, if it has outlived the last rank 0.
	register
	// Either side ends the connection: Reason; Record = the sender's, if another one leads; Generation = the sender's,
	// if that is why; Last = the receiver, a rank 0, has lost its place to its next start.
	refuse

	// The commit.
	waiting  // rank 0 says which ranks are missing: Missing, Present; a roster that was acknowledged is void
	prepare  // rank 0 sends the roster: Epoch, and Roster, or Hash with Parent, the rank to fetch it from
	ack      // a rank holds the roster: Epoch, Hash
	launched // rank 0 says go: Epoch
	started  // a rank has acted on go: Epoch

	// The end.
	// Either side: rank 0 shall end the job, or another rank its command: Signal, Reason; Name = nonce of a rank that
	// asks, which repeats it before the launch.
	stop
	// A rank: its command has ended: Outcome, After, Clock, Stopped. Before the launch, the rank leaves: Outcome;
	// Record = the leaving rank's, if another rank passes it on.
	ended
	// Rank 0: the job has ended: Outcome; Last = no bye follows; Record = rank 0's in the answer to announce. Any rank
	// answers ended so, with the same Outcome, if the receiver leaves alone.
	done
	doneAck // a rank knows the end; or keeps the message of a rank that leaves

	// Questions of a rank to rank 0, and barriers. The rank chooses Call, and the answer repeats it.
	// A rank asks for all ranks, or, with Name, for the ranks that are absent at a barrier, or for Times, or with Brief
	// whether the job is ready: Call.
	inquiry
	// Rank 0: Call, and Ranks with Now, Deadline and Ready, or Times with Now, or Missing, or Ready alone. Reason says
	// why the job is not ready.
	answer
	arrive   // a rank calls a barrier: Call, Name
	leave    // a rank takes a call back: Call, Name
	release  // rank 0: every rank has called: Call
	released // a rank has seen the release: Call

	bye // rank 0: every rank knows the end: leave

	// Questions over connections that are dialled for them, to any rank.
	// A rank waits for rank 0 to dial it; a rank other than 0 passes it on: Record; Generation, if it has outlived the
	// last rank 0.
	announce
	// The answer: Record of rank 0, if known; Name = nonce of the sender, unless it is rank 0; Reason = why rank 0
	// cannot connect to the rank that waits.
	lead
	// A rank asks whether the receiver sees another one: Record; Generation as in hello. Last asks for the verdict on a
	// lost rank 0, with Outcome if the sender knows it. With Name, a nonce, the question is only whether the receiver
	// is that start, and has a part in Generation.
	look
	seen  // the answer: Alive or Reason, State, Hash, Outcome if known; Name = nonce of the sender
	fetch // a rank wants a roster: Hash
	table // the answer: Roster

	clock // rank 0 asks for a rank's clock: Call; the rank answers: Call, Clock, Now, Kills
	ping  // either side asks whether the process at the other end still answers
	pong  // it does

	note // a rank tells rank 0 about its container: Name = kind of the note, Text, Now

	// The end of a generation, see generation.go.
	again   // rank 0: end the processes of this generation: Text
	cleared // a rank: none is left: Kills = processes that it has ended, After = nanoseconds that this took
	next    // rank 0: every rank has cleared, the next generation begins

	idle // rank 0: the job runs, without this container: Size = ranks

	works // a rank: its command runs
)

// A roster of 4,000 ranks takes about 200 KB; the JSON of their status 1 MB.
const maxMessage = 8 << 20

// wire is one control connection. Messages go out through a queue, so that a slow peer never blocks the loop.
type wire struct {
	rwc  io.ReadWriteCloser
	mu   sync.Mutex
	cond sync.Cond // queue, writing or shut changed
	out  []message
	busy bool
	shut bool
	wg   sync.WaitGroup
	ref  *Record // reference of the records that answer a greeting

	share func([]Member) []Member // Config.share; nil = every roster is a copy

	local netip.Addr     // address of this container on the connection; invalid = unknown
	said  netip.AddrPort // the address that the other side believes to have; only the loop touches it

	greeted uint64 // the last generation of a repeated greeting; only the loop touches it
}

// newWire takes over a connection; ref is the record that is sent in the greeting.
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

// flush waits until all queued messages were written, or the connection ended.
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
		if w.share != nil && m.Roster != nil {
			m.Roster.Members = w.share(m.Roster.Members)
		}
		if err := handle(m); err != nil {
			return err
		}
	}
}

var errEnded = errors.New("control connection ended")
