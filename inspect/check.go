// Package inspect describes one container.
//
// [Checkup.Run] finds what would keep a launch in it from working.
package inspect

import (
	"context"
	"io/fs"
	"net/netip"
	"time"
)

// Severity says how bad a [Finding] is.
type Severity string

// The severities of a [Finding].
const (
	SeverityOK   Severity = "ok"
	SeverityWarn Severity = "warn" // the job may fail or be slow
	SeverityFail Severity = "fail" // the job cannot run like this
)

// Finding is one result of [Checkup.Run]. Its JSON is that of `paiinit check --json`.
type Finding struct {
	Severity Severity `json:"severity"`
	Name     string   `json:"name"` // what was examined, one word
	Text     string   `json:"text"`
	Fix      string   `json:"fix"` // what to do, "" if there is nothing to do

	status int // the exit status of paiinit run, of a Fail
}

// Job is what the environment tells about this container's place in the job.
type Job struct {
	System     string
	Alias      string
	Rank, Size int // -1 = unknown
	Slots      int
	GPUs, CPUs int
	Port       int
	Hosts      []string // of all containers, as far as the environment names them
	Warnings   []string

	// Secret finds the job's secret, and returns where it is and how long; "" if there is none.
	Secret func() (source string, length int, err error)
}

// Fabric is what the verbs devices of this container can be used for.
type Fabric struct {
	Summary      string
	Devices      int
	Usable       bool
	Problem, Fix string // the worst finding about a device, "" if there is none
	PeerMemory   string // "denied" if processes may not read each other's memory
}

// Checkup is everything that [Checkup.Run] looks at. It reads Root and Environ itself; the functions bring what needs a
// network, a launcher, a secret or another system call. Run does not wait for Job, Identify, Resolve and Fabric if they
// hang.
type Checkup struct {
	Root    fs.FS
	Environ []string // without the job's secret
	Command []string
	Dir     string // the working directory
	System  System

	ExecAll  bool // every rank runs Command
	LoginsIn bool // people may log in from outside
	Insecure bool
	ImageSSH bool   // the job uses the image's ssh
	RDMA     string // "auto", "require" or "off"
	StateDir string // "" = the usual places
	Usual    string // the first of them
	Running  string // the paiinit that runs in this container, "" if there is none

	Unknown   []string // one text for each variable of paiinit that has no meaning
	Launchers []string // programs whose versions Identify does not tell

	Job      func(context.Context) (Job, error)
	Place    func(stateDir string, size int) (string, error) // finds the state directory that a launch would use
	Look     func(name string, environ []string, dir string) (string, error)
	Identify func(ctx context.Context, command, environ []string, hurry bool) string
	Resolve  func(ctx context.Context, host string) ([]netip.Addr, error)
	TryPort  func(port int) (tcp, udp error)            // opens the port for a moment
	Greeting func(ctx context.Context, port int) string // what a server on this host sends first
	Fabric   func() Fabric
	Status   func(error) int // the exit status of paiinit run for an error
}

// The limits in time of a check. The whole takes at most totalTimeout and the second in which a launcher's version
// query must close its output.
const (
	jobTimeout     = 1200 * time.Millisecond // DNS under docker compose
	versionTimeout = 1700 * time.Millisecond
	totalTimeout   = 2700 * time.Millisecond
)

// Run examines the image and the container, and changes neither. It takes less than 3 s.
func (c Checkup) Run(ctx context.Context) Result {
	ctx, cancel := context.WithTimeout(ctx, totalTimeout)
	defer cancel()
	launchers := within(ctx, launcherLate, func() string {
		ctx, cancel := context.WithTimeout(ctx, versionTimeout)
		defer cancel()
		return c.Identify(ctx, nil, c.Environ, true)
	})
	fabric := within(ctx, Fabric{Summary: fabricLate}, c.Fabric)
	e := c.examine(ctx)
	names := within(ctx, unresolved{late: len(e.job.Hosts)}, func() unresolved { return e.resolve(ctx) })

	var r Result // in the order in which a launch would meet the problems
	r.add(e.aboutJob()...)
	r.add(e.variables()...)
	r.add(e.stateDir(), e.secret(), e.command(), e.entrypoint())
	r.add(e.launchers(launchers())...)
	r.add(e.shell(), e.ssh())
	r.add(e.port(ctx)...)
	r.add(e.names(names())...)
	r.add(e.gpus())
	r.add(e.fabric(fabric())...)
	r.add(e.sharedMemory(), e.lockedMemory(), e.memory(), e.cpus(), e.processes(), e.files(), e.init(), e.clock())
	r.count()
	return r
}

// examination is a Checkup with what all its parts need.
type examination struct {
	Checkup
	job Job
	err error // why job is unknown
}

func (c Checkup) examine(ctx context.Context) *examination {
	type answer struct {
		job Job
		err error
	}
	e := &examination{Checkup: c}
	ctx, cancel := context.WithTimeout(ctx, jobTimeout)
	defer cancel()
	got := within(ctx, answer{Job{Rank: -1, Size: -1}, context.DeadlineExceeded}, func() answer {
		job, err := c.Job(ctx)
		return answer{job, err}
	})()
	e.job, e.err = got.job, got.err
	if e.job.Size == 1 {
		e.job.Hosts = nil // it needs no other host
	}
	return e
}

// alone reports whether this container is the whole job: it opens no port and needs no secret.
func (e *examination) alone() bool { return e.err == nil && e.job.Size == 1 && !e.LoginsIn }

// within runs f in the background. It returns a function that waits for the result, and returns late if ctx ends
// before: f may hang in a driver.
func within[T any](ctx context.Context, late T, f func() T) func() T {
	done := make(chan T, 1)
	go func() { done <- f() }()
	return func() T {
		select {
		case <-ctx.Done():
			select {
			case v := <-done:
				return v
			default:
				return late
			}
		case v := <-done:
			return v
		}
	}
}

func pass(name, text string) Finding { return Finding{Severity: SeverityOK, Name: name, Text: text} }
func warning(name, text, fix string) Finding {
	return Finding{Severity: SeverityWarn, Name: name, Text: text, Fix: fix}
}
func failure(name, text, fix string, status int) Finding {
	return Finding{Severity: SeverityFail, Name: name, Text: text, Fix: fix, status: status}
}
