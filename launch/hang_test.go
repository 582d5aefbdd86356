package launch

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// watched is a command whose signs of progress a test gives.
type watched struct {
	mu      sync.Mutex
	output  int
	files   string
	stopped bool
	delay   time.Duration // of an answer of the file system
	freeze  time.Duration // of this process, at its next look
}

// set changes the signs after a time.
func (w *watched) set(after time.Duration, change func()) {
	time.Sleep(after)
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

func (w *watched) signs() signs {
	locked := func(f func()) {
		w.mu.Lock()
		defer w.mu.Unlock()
		f()
	}
	return signs{
		output: func() (n int) {
			var freeze time.Duration
			locked(func() { n, freeze, w.freeze = w.output, w.freeze, 0 })
			time.Sleep(freeze)
			return n
		},
		files: func() (state string) {
			var delay time.Duration
			locked(func() { state, delay = w.files, w.delay })
			time.Sleep(delay)
			return state
		},
		stopped: func() (is bool) {
			locked(func() { is = w.stopped })
			return is
		},
	}
}

func TestHangAwait(t *testing.T) {
	const after = 10 * time.Minute
	repeat := func(w *watched, times int, pause time.Duration, f func()) {
		for range times {
			w.set(pause, f)
		}
	}
	for name, tt := range map[string]struct {
		happens func(*watched)
		want    time.Duration // until the hang is found, or a few looks later
	}{
		"nothing": {func(*watched) {}, after},
		"output": {
			func(w *watched) { repeat(w, 9, after-time.Second, func() { w.output++ }) }, 10*after - 9*time.Second,
		},
		"a file": {
			func(w *watched) { repeat(w, 9, after-time.Second, func() { w.files += "x" }) }, 10*after - 9*time.Second,
		},
		"a file that is made": {
			func(w *watched) { w.set(time.Minute, func() { w.files = "made" }) }, time.Minute + after,
		},
		// The clock goes on while the container is frozen: less than one look of that time counts.
		"frozen": {
			func(w *watched) { w.set(after/2, func() { w.freeze = 9 * time.Hour }) }, 9*time.Hour + after - maxHangLook,
		},
		"frozen until it would have hung": {
			func(w *watched) { w.set(after-time.Second, func() { w.freeze = time.Minute }) },
			time.Minute + after - maxHangLook,
		},
		"stopped": {
			func(w *watched) {
				w.set(0, func() { w.stopped = true })
				w.set(time.Hour, func() { w.stopped = false })
			}, time.Hour + after - maxHangLook,
		},
		"a dead file server": {
			func(w *watched) {
				w.set(after/2, func() { w.delay = time.Hour })
				w.set(time.Minute, func() { w.delay = 0 })
			}, time.Hour + after - maxHangLook,
		},
		"a dead file server, and output": {
			func(w *watched) {
				w.set(time.Minute, func() { w.delay = time.Hour })
				w.set(time.Minute, func() { w.delay = 0 })
				repeat(w, 100, time.Minute, func() { w.output++ })
			}, 102*time.Minute + after,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &watched{files: "absent"}
				found := make(chan time.Duration)
				begin := time.Now()
				go func() {
					Hang{After: after}.await(context.Background(), w.signs())
					found <- time.Since(begin)
				}()
				synctest.Wait()
				tt.happens(w)
				at := <-found
				require.GreaterOrEqual(t, at, tt.want)
				require.LessOrEqual(t, at, tt.want+3*maxHangLook)
			})
		})
	}
}

func TestHangAwaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.False(t, Hang{After: time.Hour}.await(ctx, (&watched{delay: time.Hour}).signs()))
		time.Sleep(time.Hour) // the file system answers at last
	})
}

// readPipe returns a pipe that is read.
func readPipe(t *testing.T) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(io.Discard, r)
	}()
	t.Cleanup(func() {
		_ = w.Close()
		<-done
		_ = r.Close()
	})
	return w
}

// hangs returns a command that is watched, and told to end by SIGTERM when it hangs.
func hangs(after time.Duration, c Command) Command {
	in := make(chan os.Signal, 1)
	c.Signals, c.TailLines, c.Grace = in, 5, time.Minute
	c.Hang.After = after
	c.Hang.Found = func() bool { in <- syscall.SIGTERM; return true }
	return c
}

// attempts is how often a test may run a command that must be in time. A slow machine can be late in one attempt, but a
// wrong program fails in every attempt.
const attempts = 5

// TestHungCommand: it is ended, and the result says why, wherever its output goes.
func TestHungCommand(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	require.NoError(t, err)
	defer func() { _ = file.Close() }()
	pipe := readPipe(t)
	for name, stdout := range map[string]*os.File{"/dev/null": nil, "file": file, "pipe": pipe} {
		c := hangs(100*time.Millisecond, sh("echo out; echo err >&2; : >written; exec sleep 1000"))
		c.Stdout, c.Dir = stdout, t.TempDir()
		found := c.Hang.Found
		c.Hang.Found = func() bool { // the shell may be late, and it must not be ended before it has written
			for range 60_000 {
				if FileState(filepath.Join(c.Dir, "written")) != "absent" {
					break
				}
				time.Sleep(time.Millisecond)
			}
			return found()
		}
		r := run(t, c)
		require.NotNil(t, r.Hung, name)
		require.Equal(t, "no output", r.Hung.Tells)
		require.False(t, r.Hung.At.IsZero())
		require.Equal(t, syscall.SIGTERM, r.Signal)
		require.Contains(t, r.Tail, "err")
	}
	c := hangs(100*time.Millisecond, sh("echo out; exec sleep 1000"))
	c.Hang.File, c.Hang.Terminal = "/ckpt/latest", true
	require.Equal(t, "/ckpt/latest has not changed", run(t, c).Hung.Tells)
}

// TestCommandThatGoesOn is not told to end, wherever its signs of progress are seen.
func TestCommandThatGoesOn(t *testing.T) {
	const after = 3 * time.Second // a busy machine may need long for one line
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = file.Close() })
	pipe := readPipe(t)
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	require.NoError(t, err)
	peer, socket := os.NewFile(uintptr(fds[0]), "peer"), os.NewFile(uintptr(fds[1]), "socket")
	t.Cleanup(func() { _, _ = peer.Close(), socket.Close() })
	const slowly = `for i in $(seq 35); do sleep 0.1; `
	var running sync.WaitGroup
	for name, tt := range map[string]struct {
		script string
		stdout *os.File
	}{
		"/dev/null":       {slowly + "echo $i; done", nil},
		"a regular file":  {slowly + "echo $i; done", file},
		"a pipe":          {slowly + "printf .; done", pipe},
		"a socket":        {slowly + "echo $i; done", socket},
		"standard error":  {slowly + "echo $i >&2; done", pipe},
		"a progress file": {slowly + "echo $i >>progress; done", pipe},
		"a link":          {slowly + "mkdir $i; ln -sfn $i progress; done", pipe},
		"stopped": {
			`(until grep -q 'State:.T' /proc/$$/status; do sleep 0.1; done; sleep 5; kill -CONT $$) &
			kill -STOP $$`, pipe,
		},
	} {
		running.Go(func() {
			var r Result
			for range attempts {
				c := hangs(after, sh(tt.script))
				c.Stdout, c.Dir, c.Processes = tt.stdout, t.TempDir(), processesHere
				c.Hang.File = filepath.Join(c.Dir, "progress")
				var err error
				r, err = Run(t.Context(), c)
				if !assert.NoError(t, err, name) || r.Hung == nil {
					break
				}
			}
			assert.Nil(t, r.Hung, name)
			assert.Zero(t, r.Status(), name)
		})
	}
	running.Wait()
}

// TestToldCommandDoesNotHang: the time of --grace is for it to save its work.
func TestToldCommandDoesNotHang(t *testing.T) {
	var r Result
	for range attempts {
		c := hangs(time.Second, sh("trap 'sleep 2; exit 3' TERM; echo ready; while :; do sleep 0.1; done"))
		s := beginAsIs(t, c)
		require.Equal(t, "ready", s.line())
		s.signals <- syscall.SIGTERM
		if r = s.wait(); r.Hung == nil {
			break
		}
	}
	require.Nil(t, r.Hung)
	require.Equal(t, 3, r.Code)
}

// TestUnreadOutputIsNoHang: the reader of the output has stopped, and with it the command.
func TestUnreadOutputIsNoHang(t *testing.T) {
	var hung *Hung
	for range attempts {
		r, w, held := fullPipe(t)
		c := hangs(time.Second, sh("head -c 300000 /dev/zero"))
		c.Stdout = w
		go func() {
			time.Sleep(2 * time.Second)
			_, _ = io.CopyN(io.Discard, r, int64(held)+300000)
		}()
		hung = run(t, c).Hung
		require.NoError(t, w.Close()) // it ends the reading if the command was ended
		if hung == nil {
			break
		}
	}
	require.Nil(t, hung)
}

func TestAnyStopped(t *testing.T) {
	for name, tt := range map[string]struct {
		job  []Process
		want bool
	}{
		"none":        {[]Process{{PID: 5, Parent: 1, State: 'S'}, {PID: 6, Parent: 5, State: 'D'}}, false},
		"the command": {[]Process{{PID: 5, Parent: 1, State: 'T'}}, true},
		"debugged": {
			[]Process{{PID: 5, Parent: 1}, {PID: 6, Parent: 5}, {PID: 7, Parent: 6, State: 't'}}, true,
		},
		"an editor of mine": {[]Process{{PID: 5, Parent: 1}, {PID: 9, Parent: 1, State: 'T'}}, false},
		"unknown":           {nil, false},
	} {
		require.Equal(t, tt.want, anyStopped(tt.job, 5), name)
	}
}

func TestFileState(t *testing.T) {
	name := filepath.Join(t.TempDir(), "latest")
	require.Empty(t, FileState(""))
	seen := map[string]bool{}
	changed := func(do func() error) {
		t.Helper()
		require.NoError(t, do())
		state := FileState(name)
		require.NotEmpty(t, state)
		require.False(t, seen[state], state)
		require.Equal(t, state, FileState(name))
		seen[state] = true
	}
	past := time.Unix(1, 0)
	changed(func() error { return nil })
	changed(func() error { return os.WriteFile(name, []byte("1"), 0o600) })
	changed(func() error { return os.Chtimes(name, past, past) })
	changed(func() error {
		require.NoError(t, os.WriteFile(name+".new", []byte("1"), 0o600))
		require.NoError(t, os.Chtimes(name+".new", past, past))
		return os.Rename(name+".new", name)
	})
	require.NoError(t, os.Remove(name))
	require.True(t, seen[FileState(name)], "absent again")
}

func TestAbortFirst(t *testing.T) {
	var got []os.Signal
	g := Stopper{Hard: func(sig os.Signal) { got = append(got, sig) }, Line: []string{"train"}}
	require.True(t, g.AbortFirst(syscall.SIGTERM))
	require.False(t, g.AbortFirst(syscall.SIGTERM))
	g.Request(syscall.SIGTERM)
	require.Equal(t, []os.Signal{syscall.SIGTERM}, got)
}

func TestHangOutcome(t *testing.T) {
	h := Hung{Hang: Hang{After: 10 * time.Minute, File: "/ckpt/latest"}}
	h.Tells = h.Hang.tells()
	r := Result{Hung: &h, Tail: []string{"step 7"}, Forwarded: syscall.SIGTERM} // it ended with 0 after SIGTERM
	o := Scene{Rank: 2, Place: "worker-2 (10.0.0.7)"}.Outcome("python3", r, nil)
	require.Equal(t, Outcome{
		Reason: "rank 2's command python3 has made no progress for 10m00s on worker-2 (10.0.0.7): " +
			"no output, and /ckpt/latest has not changed",
		Stderr: "step 7", Own: true, Hung: true,
	}, o)
}
