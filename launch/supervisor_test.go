package launch

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLaunchers(t *testing.T) {
	job := []Process{
		{PID: 9, Parent: 1, Name: "sh"},
		{PID: 10, Parent: 9, Name: "prterun", State: 'S', Started: 10 * time.Second},
		{PID: 11, Parent: 9, Name: "prterun", State: 'S', Started: 90 * time.Second}, // a later one
		{PID: 13, Parent: 9, Name: "python3", State: 'S', Started: time.Second},
		{PID: 14, Parent: 9, Name: "mpiexec.hydra", State: 'S', Started: 20 * time.Second},
		{PID: 15, Parent: 9, Name: "mpirun", State: 'Z', Started: time.Second}, // has ended
		{PID: 20, Parent: 10, Name: "ssh", State: 'Z', Exit: 65280},            // exited with 255
		{PID: 21, Parent: 14, Name: "ssh", State: 'Z', Exit: 9},                // killed
		{PID: 22, Parent: 10, Name: "ssh", State: 'Z'},                         // succeeded
		{PID: 23, Parent: 10, Name: "ssh", State: 'S', Exit: 65280},            // runs
	}
	require.Equal(t, []int{10, 14}, launchersBefore(job, 20*time.Second))
	require.Empty(t, launchersBefore(job, 0))
	require.Equal(t, map[int]int{20: 255, 21: 137}, failedChildren(job, launchersBefore(job, time.Hour)))
	require.Empty(t, failedChildren(job, nil))
	require.Empty(t, launchersBefore(nil, time.Hour))
	require.Greater(t, SinceBoot(), time.Duration(0))
}

func TestDaemonsAreIdleWhenTheLastHasEnded(t *testing.T) {
	d := NewSessions(Statuses{75, 69})
	for _, host := range []string{"b", "a", "b"} {
		d.begun(host, Daemon{Program: "orted", Hosts: 4}, false)
	}
	d.begun("c", Daemon{Program: "hydra_pmi_proxy"}, false)
	d.ended()
	d.lose("the first is kept", true)
	require.Empty(t, d.idle)
	d.ended()
	require.Len(t, d.idle, 1)
	d.begun("a", Daemon{Program: "prted", Hosts: 2}, false)
	d.ended()
	require.Len(t, d.idle, 1, "only the latest counts, and sending does not block")
	d.lose("the second is not", false)
	now := d.now()
	require.Equal(t, "the first is kept", now.lost)
	require.Equal(t, []string{"a", "b", "c"}, slices.Sorted(maps.Keys(now.reached)))
	require.Equal(t, 4, now.hosts)
	require.False(t, now.tree)
	d.begun("c", Daemon{Program: "hydra_bstrap_proxy"}, false)
	require.True(t, d.now().tree)
}

// Open MPI watches its remote shells, hydra does not.
func TestDaemonsAreWatched(t *testing.T) {
	for program, want := range map[string]bool{
		"orted": true, "prted": true, "hydra_pmi_proxy": false, "pmi_proxy": false, "": false,
	} {
		d := NewSessions(Statuses{75, 69})
		require.False(t, d.now().watched)
		d.begun("a", Daemon{Program: program, Detached: program == "prted"}, false)
		require.Equal(t, want, d.now().watched, program)
		d.begun("b", Daemon{}, true)
		require.Equal(t, want, d.now().watched, program)
	}
}

// job is a command under a Supervisor in virtual time.
type job struct {
	*Supervisor
	t     *testing.T
	began time.Time
	said  []string
	ended func()
	why   chan Interruption

	mu        sync.Mutex
	processes []Process
}

// supervised starts the Supervisor of a command on a job of three hosts and runs f in virtual time.
func supervised(t *testing.T, line string, f func(*job)) {
	t.Helper()
	supervisedWith(t, line, func(*Supervisor) {}, f)
}

// supervisedWith calls change with the Supervisor before it starts.
func supervisedWith(t *testing.T, line string, change func(*Supervisor), f func(*job)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		j := &job{t: t, began: time.Now(), why: make(chan Interruption, 1)}
		say := func(to string) func(os.Signal) {
			return func(sig os.Signal) { j.say("%s %v", to, sig) }
		}
		log := slog.New(slog.DiscardHandler)
		j.Supervisor = Supervise(&Supervisor{
			Line: strings.Fields(line), Self: "a", Hosts: 3, Log: log, Sessions: NewSessions(Statuses{75, 69}),
			Asks: &Asks{Log: log, Slots: func(context.Context, Request) (map[string]int, error) {
				return map[string]int{"a": 1, "b": 1, "c": 1}, nil
			}},
			Processes: func() []Process {
				j.mu.Lock()
				defer j.mu.Unlock()
				return j.processes
			},
			SinceBoot: func() time.Duration { return time.Hour + time.Since(j.began) },
			Hard:      say("command"), Gently: say("ranks"),
			Connections: func([]int) Connections { return Connections{} },
			Kill:        func(pid int, sig syscall.Signal) error { j.say("process %d %v", pid, sig); return nil },
		})
		change(j.Supervisor)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { j.why <- j.Watch(ctx) }()
		j.ended = cancel
		f(j)
	})
}

func (j *job) say(format string, args ...any) {
	j.said = append(j.said, fmt.Sprintf("%v ", time.Since(j.began))+fmt.Sprintf(format, args...))
}

// run sets the processes of the job.
func (j *job) run(processes ...Process) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.processes = processes
}

// end ends the command, and returns why it was stopped.
func (j *job) end() Interruption {
	synctest.Wait()
	j.ended()
	return <-j.why
}

const (
	notEnded = ", and the command did not end by itself"

	anOrted = ` orted -mca ess "env"`
	aProxy  = `"/usr/bin/hydra_pmi_proxy" --control-port a:1`
)

func TestSupervisorEndsHungCommands(t *testing.T) {
	launcher := Process{PID: 10, Name: "mpirun", State: 'S', Started: time.Minute}
	for name, tt := range map[string]struct {
		line   string
		happen func(*job)
		want   Interruption
		said   string // the signals and their times
	}{
		"all well": {
			"mpirun x", func(j *job) {
				j.Begun("b", anOrted)
				j.Ended("b", anOrted, 0, 0)
			}, Interruption{}, "",
		},
		"a proxy fails": {
			"mpiexec x", func(j *job) {
				j.Begun("b", aProxy)
				j.Ended("b", aProxy, 3, 0)
			},
			Interruption{Reason: "the launcher's proxy on b ended with status 3" + notEnded, Status: 3},
			"5s command terminated|8s command killed",
		},
		"a proxy is killed": {
			"mpiexec x", func(j *job) { j.Ended("b", aProxy, 137, syscall.SIGKILL) },
			Interruption{Reason: "the launcher's proxy on b ended with status 137" + notEnded, Status: 75},
			"5s command terminated|8s command killed",
		},
		"a daemon cannot be started": {
			"mpirun x", func(j *job) { j.Failed(Failure{Host: "c", Command: anOrted, Stage: "login"}) },
			Interruption{Reason: "the remote shell to c failed (login)" + notEnded, Status: 75},
			"10s command terminated|13s command killed",
		},
		"a host outside the job": {
			"mpiexec x", func(j *job) {
				j.Failed(Failure{Host: "z", Command: aProxy, Stage: "resolve", Unknown: true})
			},
			Interruption{
				Status: 69, Reason: "the launcher was told to use z, which is not a container of this job" + notEnded,
			},
			"5s command terminated|8s command killed",
		},
		"a name that was mistyped": {
			"mpirun x", func(j *job) { j.Failed(Failure{Host: "z", Command: "ls", Stage: "resolve", Unknown: true}) },
			Interruption{}, "",
		},
		"a script goes on after its launcher has failed": {
			"sh x", func(j *job) { j.Failed(Failure{Host: "c", Command: anOrted, Stage: "login"}) }, Interruption{}, "",
		},
		"a script whose launcher hangs": {
			"sh x", func(j *job) {
				j.run(launcher)
				j.Failed(Failure{Host: "c", Command: anOrted, Stage: "login"})
			},
			Interruption{Reason: "the remote shell to c failed (login)" + notEnded, Status: 75},
			"10s command terminated",
		},
		"all daemons have ended": {
			"mpirun x", func(j *job) {
				j.run(launcher)
				j.Begun("b", anOrted)
				j.Ended("b", anOrted, 0, 0)
			},
			Interruption{Reason: "the launcher did not end after all its daemons had ended", Status: 75},
			"10s process 10 killed",
		},
		"daemons again": {
			"mpirun x", func(j *job) {
				j.run(launcher)
				j.Begun("b", anOrted)
				j.Ended("b", anOrted, 0, 0)
				time.Sleep(time.Second)
				j.Begun("b", anOrted)
			}, Interruption{}, "",
		},
		"a remote shell that the launcher does not look at": {
			"mpiexec x", func(j *job) {
				zombie := Process{PID: 11, Parent: 10, Name: "ssh", State: 'Z', Exit: 255 << 8}
				j.run(Process{PID: 10, Name: "mpiexec", State: 'S'}, zombie)
			},
			Interruption{Reason: "the launcher's remote shell ended with status 255" + notEnded,
				Status: 75},
			"10s command terminated|13s command killed",
		},
		"a rank is lost": {
			"mpirun x", func(j *job) { j.Lost(Loss{Rank: 2, Name: "c", Reason: "no answer"}) },
			Interruption{Reason: "rank 2 (c) was lost: no answer", Status: 75},
			"0s command terminated|3s command killed",
		},
		"a script loses a rank": {
			"sh x", func(j *job) { j.Lost(Loss{Rank: 2, Name: "c", Reason: "no answer"}) },
			Interruption{Reason: "rank 2 (c) was lost: no answer", Status: 75}, "0s command terminated",
		},
		"a rank wants it": {
			"mpirun x", func(j *job) {
				j.Stop(Stop{Name: "c", Signal: int(syscall.SIGINT), Reason: "c was stopped by SIGINT"})
				j.Stop(Stop{Name: "b", Reason: "b, too"})
				j.Lost(Loss{Rank: 2, Name: "c", Reason: "it left"})
			},
			Interruption{Reason: "c was stopped by SIGINT", Lost: "rank 2 (c) was lost: it left"}, "0s ranks interrupt",
		},
	} {
		t.Run(name, func(t *testing.T) {
			supervised(t, tt.line, func(j *job) {
				tt.happen(j)
				time.Sleep(time.Minute)
				require.Equal(t, tt.want, j.end())
				require.Equal(t, tt.said, strings.Join(j.said, "|"))
				j.Stop(Stop{}) // Watch has returned, so this must not block
			})
		})
	}
}

func (j *job) Begun(host, command string) { j.Sessions.Begun(host, command) }
func (j *job) Failed(f Failure)           { j.Sessions.Failed(f) }
func (j *job) Ended(host, command string, status int, sig syscall.Signal) {
	j.Sessions.Ended(host, command, status, sig)
}

func TestSupervisorJudges(t *testing.T) {
	lost := func(time.Duration) *Loss { return &Loss{Rank: 1, Name: "b", Reason: "it is away"} }
	none := func(time.Duration) *Loss { return nil }
	for name, tt := range map[string]struct {
		line   string
		happen func(*job)
		ending Ending
		want   Outcome
	}{
		"well": {
			"mpirun x", func(j *job) {
				j.Note(t.Context(), j.Line, "/")
				j.Begun("b", anOrted)
				j.Begun("c", anOrted)
			}, Ending{Absent: none}, Outcome{Status: 0, Reason: "rank 0's command mpirun ended with status 0"},
		},
		"hosts that it did not use": {
			"mpirun x", func(j *job) { j.Note(t.Context(), j.Line, "/") }, Ending{Absent: none},
			Outcome{Status: 69, Reason: "mpirun ended with status 0, but did not use the hosts of this job: " +
				"it asked for at least 3 and started on at most 1 (a). " +
				"The launcher did not read the host list in its environment: " +
				"an option or a configuration file of its own may have taken its place. --allow-partial accepts it"},
		},
		"0 although a daemon was lost": {
			"mpirun x", func(j *job) {
				j.Begun("b", anOrted)
				j.Failed(Failure{Host: "b", Command: anOrted, Stage: "session", Running: true})
			},
			Ending{Absent: none},
			Outcome{Status: 75, Reason: "the launcher's daemon on b was lost; " +
				"rank 0's command mpirun ended with status 0"},
		},
		"0 although the launcher reports a lost daemon": {
			"mpirun x", nil, Ending{Result: Result{LostDaemon: true}, Absent: none},
			Outcome{Status: 75, Reason: "the launcher has lost a daemon; rank 0's command mpirun ended with status 0"},
		},
		"0 before paiinit notices the loss": {
			"mpirun x", nil, Ending{Result: Result{LostDaemon: true}, Absent: func(settle time.Duration) *Loss {
				if settle == 0 {
					return nil
				}
				return lost(settle)
			}},
			Outcome{Status: 75, Reason: "rank 1 (b) was lost: it is away; rank 0's command mpirun ended with status 0"},
		},
		"0 although a rank is gone": {
			"mpirun x", nil, Ending{Absent: lost},
			Outcome{Status: 75, Reason: "rank 1 (b) was lost: it is away; rank 0's command mpirun ended with status 0"},
		},
		"a failure because a rank is gone": {
			"sh x", nil, Ending{Result: Result{Code: 9}, Absent: lost},
			Outcome{Status: 75, Reason: "rank 1 (b) was lost: it is away; rank 0's command sh ended with status 9"},
		},
		"0 after SIGTERM": { // MPICH exits with 0 then
			"mpiexec x", nil, Ending{Result: Result{Forwarded: syscall.SIGTERM}, Launcher: true},
			Outcome{Status: 143, Reason: "rank 0's command mpiexec ended with status 0 after SIGTERM", Stopped: true},
		},
		"a program with a status of its own after SIGTERM": {
			"train", nil, Ending{Result: Result{Code: 3, Forwarded: syscall.SIGTERM}},
			Outcome{Status: 3, Reason: "rank 0's command train ended with status 3 after SIGTERM", Stopped: true},
		},
		"a program that saved its work": {
			"train", nil, Ending{Result: Result{Forwarded: syscall.SIGTERM}},
			Outcome{Status: 0, Reason: "rank 0's command train ended with status 0 after SIGTERM", Stopped: true},
		},
		"a launcher that said why, and was killed": {
			"prterun x", nil, Ending{
				Result: Result{Signal: syscall.SIGKILL, Blame: Blame{Process: "MPI rank 4", Status: 3}},
				Why:    Interruption{Reason: "it hung", Status: 75}, Launcher: true,
			},
			Outcome{Status: 3, Reason: "it hung; MPI rank 4 ended with status 3; " +
				"rank 0's command prterun was killed by SIGKILL"},
		},
		"a host without the launcher": {
			"mpirun x", func(j *job) {
				j.Begun("b", anOrted)
				j.Ended("b", anOrted, 127, 0)
			}, Ending{Result: Result{Code: 127, Blame: Blame{Cause: "it could not start"}}, Absent: none},
			Outcome{Status: 127, Reason: "orted was not found on b; it could not start"},
		},
		"a script that tried another launcher then": {
			"sh x", func(j *job) {
				j.Begun("b", anOrted)
				j.Ended("b", anOrted, 126, 0)
			}, Ending{Absent: none},
			Outcome{Reason: "rank 0's command sh ended with status 0"},
		},
		"a launcher whose daemon cannot be executed": {
			"sh x", func(j *job) {
				j.Begun("b", anOrted)
				j.Ended("b", anOrted, 126, 0)
			}, Ending{Result: Result{Code: 1}, Absent: none},
			Outcome{Status: 1, Reason: "orted cannot be executed on b; rank 0's command sh ended with status 1"},
		},
		"stopped for a loss": {
			"mpirun x", nil, Ending{
				Result: Result{Code: 1, Forwarded: syscall.SIGTERM}, Launcher: true,
				Why: Interruption{Reason: "rank 1 (b) was lost: gone", Status: 75},
			},
			Outcome{Status: 75, Reason: "rank 1 (b) was lost: gone; " +
				"rank 0's command mpirun ended with status 1 after SIGTERM"},
		},
		"a hang, and a loss because of it": {
			"mpirun x", nil, Ending{
				Result: Result{
					Hung:      &Hung{Hang: Hang{After: time.Minute}, Tells: "no output"},
					Forwarded: syscall.SIGTERM, Blame: Blame{Process: "MPI rank 4", Status: 3},
				},
				Why: Interruption{Reason: "rank 1 (b) was lost: gone", Status: 75}, Launcher: true,
			},
			Outcome{
				Status: 75, Hung: true,
				Reason: "rank 0's command mpirun has made no progress for 1m00s: no output",
			},
		},
		"a loss while a request to stop was on its way": {
			"train", nil, Ending{Why: Interruption{Reason: "b wants it", Lost: "rank 1 (b) was lost: gone"}},
			Outcome{Status: 75, Reason: "b wants it; rank 1 (b) was lost: gone; " +
				"rank 0's command train ended with status 0"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			supervised(t, tt.line, func(j *job) {
				if tt.happen != nil {
					tt.happen(j)
				}
				j.end()
				require.Equal(t, tt.want, j.Judge(tt.ending))
			})
		})
	}
}

func (j *job) Note(ctx context.Context, line []string, dir string) { j.Asks.Note(ctx, line, dir) }
