package rendezvous

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// message is one line of JSON on a control connection.
type message struct {
	Type    kind      `json:"type"`
	Record  *Record   `json:"record,omitempty"`
	Epoch   uint64    `json:"epoch,omitempty"`
	Hash    string    `json:"hash,omitempty"`
	Roster  *Roster   `json:"roster,omitempty"`
	State   Phase     `json:"state,omitempty"`
	Missing []Missing `json:"missing,omitempty"`
	Present int       `json:"present,omitempty"`
	Outcome *Outcome  `json:"outcome,omitempty"`
	Reason  string    `json:"reason,omitempty"`
	Signal  int       `json:"signal,omitempty"`
}

type kind string

const (
	hello    kind = "hello"    // from the one who dialled: its record
	register kind = "register" // the answer: record, state, epoch of the roster held
	refuse   kind = "refuse"   // either side: reason; the connection ends
	waiting  kind = "waiting"  // rank 0 tells who is missing
	prepare  kind = "prepare"  // epoch, roster with its hash
	ack      kind = "ack"      // epoch and hash, as held by this rank
	launched kind = "go"       // epoch
	started  kind = "started"  // the answer to go
	stop     kind = "stop"     // a rank asks rank 0 to end the job: signal, reason
	done     kind = "done"     // outcome
	doneAck  kind = "done-ack" //
)

// A roster of 4,000 ranks takes about 1.5 MB.
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
}

func newWire(rwc io.ReadWriteCloser) *wire {
	w := &wire{rwc: rwc}
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
		b, err := json.Marshal(m)
		if err == nil {
			_, err = w.rwc.Write(append(b, '\n'))
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
	sc := bufio.NewScanner(w.rwc)
	sc.Buffer(make([]byte, 0, 4096), maxMessage)
	for sc.Scan() {
		var m message
		if err := json.Unmarshal(sc.Bytes(), &m); err != nil {
			return fmt.Errorf("control connection: line that is not a message: %w", err)
		}
		if err := handle(m); err != nil {
			return err
		}
	}
	if err := sc.Err(); err != nil {
		return fmt.Errorf("control connection: %w", err)
	}
	return io.EOF
}

var errEnded = errors.New("control connection ended")
