package launch

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/internal/proc"
)

// processesHere lists the processes below the process that reaps for the tests, without the tests themselves.
func processesHere() []Process {
	fsys := os.DirFS("/proc")
	all := make(map[int]Process)
	for pid, p := range proc.ReadAll(fsys, os.Getpid()) {
		all[pid] = Process{PID: pid, Parent: p.Parent, Group: p.Group, State: p.State, Started: p.Started,
			Args: func() []string { return proc.CommandLine(fsys, pid) }}
	}
	var found []Process
	for pid, p := range all {
		for up := p; up.PID != 0 && pid != os.Getpid(); up = all[up.Parent] {
			if up.Parent == os.Getppid() {
				found = append(found, p)
				break
			}
		}
	}
	return found
}

// tree reads "PID PARENT GROUP STATE COMMAND" lines.
func tree(t *testing.T, text string) family {
	t.Helper()
	var all []Process
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		var p Process
		_, err := fmt.Sscanf(line, "%d %d %d %c", &p.PID, &p.Parent, &p.Group, &p.State)
		require.NoError(t, err)
		if p.State != 'Z' {
			p.Args = func() []string { return words[4:] }
		}
		all = append(all, p)
	}
	return newFamily(all)
}

func numbers(found []Process) (pids []int) {
	for _, p := range found {
		pids = append(pids, p.PID)
	}
	return pids
}

func TestPath(t *testing.T) {
	for name, test := range map[string]struct {
		tree string
		want []int
	}{
		"python and its workers": {`
			10 2 10 S python train.py
			11 10 10 S python train.py
			12 10 10 S python -c from_multiprocessing`, []int{10}},
		"a shell": {`
			10 2 10 S sh -c a;b
			11 10 10 S python train.py
			12 11 10 S python train.py`, []int{10, 11}},
		"a shell alone": {`10 2 10 S /bin/bash ./train.sh`, []int{10}},
		"background jobs and a pipe": {`
			10 2 10 S -bash
			11 10 10 S bash
			12 11 10 S python a.py
			13 10 10 S tee log
			14 10 10 Z
			15 12 10 S python a.py`, []int{10, 11, 12, 13}},
		"busybox": {`
			10 2 10 S /bin/busybox sh -c a;b
			11 10 10 S busybox sleep 5`, []int{10, 11}},
		"another init tells its child itself": {`
			10 2 10 S /usr/bin/tini -g -- sh -c a;b
			11 10 11 S sh -c a;b
			12 11 11 S python train.py`, []int{11, 12}},
		"an init without a child yet": {`10 2 10 S dumb-init python train.py`, []int{10}},
		"an init whose child has ended": {`
			10 2 10 S dumb-init python train.py
			11 10 10 Z`, []int{10}},
		"timeout, which would tell the workers": {`
			10 2 10 S sh -c timeout 1h python train.py; echo
			11 10 11 S timeout 1h python train.py
			12 11 11 S python train.py
			13 12 11 S python train.py`, []int{10, 12}},
		"not before exec": {`10 2 10 S env A=1 python train.py`, []int{10}},
		"a launcher":      {"10 2 10 S mpirun python train.py\n11 10 11 S python train.py", []int{10}},
		"ended":           {"10 2 10 Z\n11 1 10 S python train.py", nil},
		"gone":            {"11 1 10 S python train.py", nil},
		"a circle":        {"10 11 10 S sh\n11 10 10 S sh", []int{10, 11}},
	} {
		require.Equal(t, test.want, numbers(tree(t, test.tree).path(10)), name)
	}
}

func TestDaemons(t *testing.T) {
	f := tree(t, `
		10 2 10 S python train.py
		11 10 10 S python train.py
		12 10 12 S redis-server
		13 1 13 S ray
		14 13 14 S raylet
		15 1 10 S left in the group
		16 1 16 Z
		20 2 20 S a session of rank 0
		21 20 21 S orted
		30 31 30 S circle
		31 30 31 S circle`)
	require.Equal(t, []int{12, 13, 14}, numbers(f.daemons(10, 2)))
	delete(f, 10)
	require.Equal(t, []int{12, 13, 14}, numbers(f.daemons(10, 2)), "also when the command has ended")
}

func TestProgram(t *testing.T) {
	for line, want := range map[string]string{
		"": "", "sh": "sh", "/usr/bin/bash|-c": "bash", "-zsh": "zsh", "busybox|ash": "ash", "/bin/busybox": "busybox",
		"toybox|/bin/sh": "sh", "-": "",
	} {
		p := Process{Args: func() []string {
			return slices.DeleteFunc(strings.Split(line, "|"), func(w string) bool { return w == "" })
		}}
		require.Equal(t, want, p.program(), line)
	}
	require.Empty(t, Process{}.program())
}

// fake is a command whose processes are a list in memory.
type fake struct {
	mu     sync.Mutex
	family family
	sent   []string
}

func (f *fake) kill(pid int, sig syscall.Signal) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if sig == 0 {
		if pid < 0 {
			for _, p := range f.family {
				if p.Group == -pid {
					return nil
				}
			}
			return syscall.ESRCH
		}
		if _, ok := f.family[pid]; !ok {
			return syscall.ESRCH
		}
		return nil
	}
	f.sent = append(f.sent, fmt.Sprintf("%d:%s", pid, strings.TrimPrefix(unix.SignalName(sig), "SIG")))
	return nil
}

func (f *fake) look() (all []Process) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.family {
		all = append(all, p)
	}
	return all
}

// taken returns the signals that were sent since its last call, sorted within the same moment.
func (f *fake) taken() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	slices.Sort(f.sent)
	defer func() { f.sent = nil }()
	return strings.Join(f.sent, " ")
}

// end has processes end.
func (f *fake) end(pids ...int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, pid := range pids {
		delete(f.family, pid)
	}
}

const training = `
	10 2 10 S sh -c cd x; python train.py
	11 10 10 S python train.py
	12 11 10 S python train.py
	13 11 13 S redis-server
	20 2 20 S a session of another rank`

func TestWhichProcessesAreSignalled(t *testing.T) {
	begin := func(t *testing.T, text string) (*fake, *group) {
		f := &fake{family: tree(t, text)}
		const grace = 8 * time.Second
		return f, &group{pgid: 10, agent: 2, grace: grace, restGrace: grace, kill: f.kill, look: f.look}
	}
	step := func(t *testing.T, g *group) { g.step(t.Context(), nil) }

	synctest.Test(t, func(t *testing.T) {
		f, g := begin(t, training)
		g.forward(syscall.SIGTERM)
		require.Equal(t, "10:TERM 11:TERM", f.taken(), "the worker gets none")
		f.family[14] = Process{PID: 14, Parent: 10, Group: 10, State: 'S'}
		g.forward(syscall.SIGTERM)
		require.Equal(t, "10:TERM 11:TERM", f.taken(), "the commands in the trap get none")
		g.forward(syscall.SIGUSR1)
		require.Equal(t, "10:USR1 11:USR1", f.taken())
		g.forward(syscall.SIGWINCH)
		require.Equal(t, "-10:WINCH", f.taken())
		began := time.Now()
		step(t, g)
		require.Equal(t, 6*time.Second, time.Since(began))
		require.Equal(t, "12:TERM 13:TERM 14:TERM", f.taken(), "the helpers that were spared")
		step(t, g)
		require.Equal(t, 8*time.Second, time.Since(began))
		require.Equal(t, "-10:KILL 10:KILL 11:KILL 12:KILL 13:KILL 14:KILL", f.taken())
	})

	t.Run("the whole group", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f, g := begin(t, training)
			g.whole = true
			g.forward(syscall.SIGTERM)
			require.Equal(t, "-10:TERM", f.taken())
			step(t, g)
			require.Equal(t, "13:TERM", f.taken(), "the group gets no second signal")
		})
	})

	t.Run("without /proc", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f, g := begin(t, "")
			g.forward(syscall.SIGTERM)
			require.Equal(t, "-10:CONT -10:TERM", f.taken())
			step(t, g)
			require.Equal(t, "-10:CONT", f.taken())
			step(t, g)
			require.Equal(t, "-10:KILL", f.taken())
		})
	})

	t.Run("what is stopped is continued", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f, g := begin(t, `
				10 2 10 T sh -c a;b
				11 10 11 T python train.py
				12 11 10 T python train.py
				13 11 10 S python train.py
				14 11 14 T another group`)
			g.forward(syscall.SIGTERM)
			require.Equal(t, "10:CONT 10:TERM 11:CONT 11:TERM 12:CONT", f.taken())
		})
	})

	t.Run("the shell ends first", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f, g := begin(t, training)
			g.forward(syscall.SIGTERM)
			f.taken()
			delete(f.family, 10)
			adopted := f.family[11]
			adopted.Parent = 1
			f.family[11] = adopted
			saves := make(chan struct{})
			time.AfterFunc(3*time.Second, func() {
				defer close(saves)
				require.Empty(t, f.taken(), "no process gets a signal while it saves")
				f.end(11)
			})
			var worker string
			time.AfterFunc(4*time.Second, func() { worker = f.taken(); f.end(12) })
			began := time.Now()
			g.sweep()
			<-saves
			require.Equal(t, "12:TERM", worker)
			require.Equal(t, "13:TERM", f.taken(), "the last is the daemon, with a share of the grace")
			require.InDelta(t, 6, time.Since(began).Seconds(), 0.2)
		})
	})

	t.Run("what leaves the group after it was told is a daemon", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f, g := begin(t, `
				10 2 10 S sh -c a
				12 1 10 S setsid daemon`)
			g.forward(syscall.SIGTERM)
			f.end(10)
			before := make(chan string, 1)
			time.AfterFunc(time.Second, func() {
				before <- f.taken()
				f.mu.Lock()
				defer f.mu.Unlock()
				f.family[12] = Process{PID: 12, Parent: 1, Group: 12, State: 'S'}
			})
			began := time.Now()
			g.sweep()
			require.Equal(t, "10:TERM 12:TERM", <-before)
			require.Equal(t, "12:TERM", f.taken())
			require.InDelta(t, 3, time.Since(began).Seconds(), 0.2)
		})
	})

	t.Run("a command that ends by itself", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f, g := begin(t, training)
			delete(f.family, 10)
			time.AfterFunc(time.Second, func() { f.end(10, 11, 12, 13, 20) })
			g.sweep()
			require.Equal(t, "-10:TERM", f.taken(), "its daemons may be meant to stay")
		})
	})

	t.Run("a command that ends by itself and leaves a stopped process", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f, g := begin(t, `
				10 2 10 S sh -c a
				12 1 10 T python train.py
				13 1 10 S python train.py`)
			delete(f.family, 10)
			time.AfterFunc(time.Second, func() { f.end(10, 12, 13) })
			g.sweep()
			require.Equal(t, "-10:TERM 12:CONT", f.taken())
		})
	})
}
