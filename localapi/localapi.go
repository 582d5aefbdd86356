// Package localapi lets the processes of one container ask its paiinit about the job, over the Unix socket status.sock.
//
// The agent of the container runs a [Server], which takes every answer from a [Job]. Commands such as `paiinit status`
// or `paiinit each` use a [Client]. A connection carries one question, a line of JSON, and one answer, another line.
// The server closes the connection without an answer if the peer belongs to another user, except root, or sends no
// valid request in time. The client refuses a server of another user, unless root asks.
//
// Processes of two versions of paiinit may talk to each other: questions and fields are added, never changed. The
// package knows neither the rendezvous nor launchers. Exit statuses come from the Job, and hints for people from the
// command that asks.
package localapi

import "time"

// Phase is the phase that the job has reached.
type Phase string

// The phases of a job.
const (
	Gathering Phase = "gathering"
	Prepared  Phase = "prepared" // this rank has acknowledged the roster
	Running   Phase = "running"
	Ended     Phase = "ended"
)

// State is the state of one rank, as this container sees it.
type State string

// The states of a rank.
const (
	Present State = "present" // rank 0 holds a control connection to it
	Heard   State = "heard"   // known from gossip; only ranks without a connection to rank 0 report this state
	Missing State = "missing"
	Spare   State = "spare" // rank 0 holds a control connection to it, and the job runs without it
	Lost    State = "lost"  // it was present at the launch, and its control connection has ended
)

// Status is what `paiinit status --json` prints and status.json holds. Fields are added, never changed.
type Status struct {
	Phase   Phase              `json:"phase"`
	Rank    int                `json:"rank"` // of this container; -1 = not agreed yet
	Size    int                `json:"size"` // -1 = unknown
	Epoch   uint64             `json:"epoch"`
	Hash    string             `json:"hash"`
	Ranks   []Rank             `json:"ranks"`
	Timings map[string]float64 `json:"timings"` // seconds from the start of this container to the end of each phase

	Name     string    `json:"name"`              // of this container in its scheduler's tools
	Deadline time.Time `json:"deadline,omitzero"` // when the wait for the missing ranks ends; zero = it does not
	Outcome  *Outcome  `json:"outcome,omitempty"` // nil = the job has not ended, or this container does not know how

	NotReady string `json:"not_ready,omitempty"` // why, on one line; "" = it is ready, or only rank 0 knows

	Spare      bool      `json:"spare,omitempty"`    // the job runs without this container, which may replace one
	Generation int       `json:"generation"`         // launches of the job in place, this one included
	Restarts   []Restart `json:"restarts,omitempty"` // the first and the last ones if there are many
}

// Restart is a restart of the job in place. Times are in seconds.
type Restart struct {
	Restart    int     `json:"restart"`    // counts within --restarts
	Generation int     `json:"generation"` // that it began; 0 = the job does not run again yet
	Cause      string  `json:"cause"`      // why the generation before ended
	Kind       string  `json:"kind"`       // failed, lost or hung
	Rank       int     `json:"rank"`       // of the cause; -1 = none
	Name       string  `json:"name"`
	Status     int     `json:"status"`
	Ran        float64 `json:"ran_s"` // from the last launch to the end
	Downtime   float64 `json:"downtime_s"`
	Clear      float64 `json:"clear_s"` // until no process was left
	Rejoin     float64 `json:"rejoin_s"`
	Commit     float64 `json:"commit_s"`
}

// Outcome is how a job has ended.
type Outcome struct {
	Status int    `json:"status"` // exit status
	Reason string `json:"reason"`
}

// Rank is one row of a Status.
type Rank struct {
	Rank   int       `json:"rank"` // -1 = not agreed yet
	Alias  string    `json:"alias"`
	Host   string    `json:"host"`
	Port   int       `json:"port"`
	State  State     `json:"state"`
	Reason string    `json:"reason"`
	Since  time.Time `json:"since"`
	Slots  int       `json:"slots"` // -1 = unknown
	GPUs   int       `json:"gpus"`  // -1 = unknown
	Fabric string    `json:"fabric"`
	// Name is the container's name in its scheduler's tools, as far as the environment tells it; otherwise Alias.
	Name string  `json:"name"`
	RTT  float64 `json:"rtt_ms"` // the shortest round trip from rank 0 of the last minutes; 0 = unknown
}

// Host is one line of a host list. The field names are those of the wire format.
type Host struct {
	Name  string
	Slots int
}

// FillCall is a launcher that starts in this container and learns its hosts from its command line alone.
type FillCall struct {
	Args []string `json:"args"` // without those of COMMAND
	Dir  string   `json:"dir"`  // working directory
	// Network is the interface that the environment names, "" if it names none.
	Network string `json:"network"`
	// Old says that this launcher has no option for the interface.
	Old bool `json:"old"`
}

// Refusal is an answer that gives an error instead of a result.
type Refusal struct {
	Exit int // exit status of the command that asks, not 0
	Text string
}

func (r *Refusal) Error() string { return r.Text }

// The questions.
const (
	askStatus   = "status"
	askWait     = "wait"
	askBarrier  = "barrier"
	askHosts    = "hosts"
	askHostfile = "hostfile"
	askNames    = "names"
	askReady    = "ready"
	askLive     = "live"
)

// request is the line that a client sends.
type request struct {
	Ask     string        `json:"ask"`
	Name    string        `json:"name"`                 // of the barrier
	Timeout time.Duration `json:"timeout"`              // of wait and barrier; 0 = no limit
	Fill    *FillCall     `json:"horovodrun,omitempty"` // with the name of the launcher in Ask
}

// answer is the line that the server sends.
type answer struct {
	Exit   int        `json:"exit"` // of the Refusal; 0 = there is none
	Error  string     `json:"error"`
	Status *Status    `json:"status,omitempty"`
	Hosts  []Host     `json:"hosts,omitempty"`
	Names  [][]string `json:"names,omitempty"`
	Add    []string   `json:"add,omitempty"` // arguments for a launcher
	Drift  *Drift     `json:"drift,omitempty"`

	Timeline *Timeline `json:"timeline,omitempty"`
}

// Limits of both directions.
const (
	maxRequest = 256 << 10 // bytes; a request of a launcher contains a list of hosts
	maxAnswer  = 16 << 20  // bytes; a status has about 300 bytes per rank

	requestTimeout = 10 * time.Second       // from the connection to the end of the request
	sendTimeout    = 10 * time.Second       // until the client has taken the answer
	lastRequest    = 100 * time.Millisecond // replaces both once the server ends, because the container waits for it
	lastSend       = time.Second
	answerTimeout  = 10 * time.Second // until the client has the answer, in addition to the timeout of wait and barrier
)
