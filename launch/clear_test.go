package launch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/internal/proc"
)

// clearProc is a /proc, made of lines "PID PARENT SESSION STATE STARTED NAME", STARTED in ticks of 10 ms.
func clearProc(t *testing.T, self int, text string) fstest.MapFS {
	t.Helper()
	f := fstest.MapFS{"uptime": {Data: []byte("1 2")}}
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) != "" {
			addProcess(t, f, line)
		}
	}
	f["self/stat"] = f[fmt.Sprintf("%d/stat", self)]
	require.NotNil(t, f["self/stat"])
	return f
}

func addProcess(t *testing.T, f fstest.MapFS, line string) {
	t.Helper()
	var pid, parent, session, started int
	var state, name string
	_, err := fmt.Sscan(line, &pid, &parent, &session, &state, &started, &name)
	require.NoError(t, err, line)
	threads := 1
	if state == "Z+" { // its first thread has ended
		state, threads = "Z", 3
	}
	f[fmt.Sprintf("%d/stat", pid)] = &fstest.MapFile{Data: fmt.Appendf(nil, "%d (%s) %s %d %d %d%s %d 0 %d 0 0\n",
		pid, name, state, parent, pid, session, strings.Repeat(" 0", 13), threads, started)}
}

// newClearing is a Clear of process 2 in a fake /proc. Its signals go nowhere.
func newClearing(fsys fs.FS, first int, spared ...int) *clearing {
	c := newClear(Clearing{First: first, Spared: func() []int { return spared }})
	c.self, c.fsys = 2, fsys
	c.open = func(int, int) (int, error) { return -1, unix.ENOSYS }
	c.kill = func(int, unix.Signal) error { return nil }
	return c
}

func pidsOf(job []proc.Process) (pids []int) {
	for _, p := range job {
		pids = append(pids, p.PID)
	}
	return pids
}

func TestWhichProcessesAreCleared(t *testing.T) {
	const (
		asInit      = "1 0 1 S 1 paiinit\n2 1 1 S 1 paiinit\n"
		asSubreaper = "1 0 1 S 1 init\n50 1 1 S 1 paiinit\n2 50 1 S 1 paiinit\n"
	)
	for name, test := range map[string]struct {
		first  int
		proc   string
		spared []int
		want   []int
	}{
		"the command's tree": {1, asInit + `
			10 2 1 S 5 mpirun
			11 10 1 S 5 python3
			12 11 12 S 5 setsid`, nil, []int{10, 11, 12}},
		"an orphan": {1, asInit + `
			20 1 20 S 5 orted
			21 20 20 S 5 python3`, nil, []int{20, 21}},
		"a session of another rank": {1, asInit + `
			30 2 30 S 5 hydra_pmi_proxy
			31 30 30 S 5 python3`, []int{40}, []int{30, 31}},
		"a person's session": {1, asInit + `
			40 2 40 S 5 bash
			41 40 40 S 5 vim
			42 41 42 S 5 setsid
			10 2 1 S 5 python3`, []int{40}, []int{10}},
		"the number of a session that has ended belongs to the job": {1, asInit + `
			40 10 1 S 5 python3
			10 2 1 S 5 python3`, []int{40}, []int{10, 40}},
		"an orphan of a person's session": {1, asInit + `
			40 2 40 S 5 bash
			43 1 40 S 5 nohup
			44 43 44 S 5 child
			45 1 44 S 5 orphan-of-child
			46 1 46 S 5 daemon`, []int{40}, []int{46}},
		"an orphan of a person's session whose leader is a zombie": {1, asInit + `
			40 2 40 Z 5 bash
			43 1 40 S 5 nohup`, []int{40}, nil},
		"an orphan in the session that a helper shares with the job": {1, asInit + `
			40 2 1 S 5 helper
			43 1 1 S 5 orphan`, []int{40}, []int{43}},
		"kubectl exec": {1, asInit + `
			60 0 60 S 5 bash
			61 60 60 S 5 nvidia-smi
			62 1 60 S 5 orphan-of-it
			63 1 63 S 5 daemon`, nil, []int{63}},
		"nsenter without a session of its own": {1, asInit + `
			60 0 0 S 5 nsenter
			61 60 0 S 5 sh
			62 1 0 S 5 orphan`, nil, []int{62}},
		"the first process has no session here": {1, `
			1 0 0 S 1 paiinit
			2 1 0 S 1 paiinit
			10 2 0 S 5 python3
			60 0 60 S 5 bash
			11 1 0 S 5 orphan`, nil, []int{10, 11}},
		"zombies": {1, asInit + `
			10 2 1 Z 5 python3
			11 1 1 X 5 python3
			12 2 1 Z+ 5 python3`, nil, []int{12}},
		"subreaper": {50, asSubreaper + `
			10 2 1 S 5 mpirun
			11 10 11 S 5 python3
			20 50 20 S 5 orphan
			40 2 40 S 5 bash
			41 40 40 S 5 vim
			43 50 40 S 5 nohup
			60 0 60 S 5 exec
			70 1 70 S 5 another
			71 70 70 S 5 another`, []int{40}, []int{10, 11, 20}},
		"a circle of numbers that were used again": {1, asInit + `
			10 11 1 S 5 python3
			11 10 1 S 5 python3
			40 2 40 S 5 bash`, []int{40}, []int{10, 11}},
		"a circle below the subreaper": {50, asSubreaper + `
			10 11 1 S 5 python3
			11 10 1 S 5 python3
			12 2 1 S 5 python3`, nil, []int{12}},
		"a person's shell has the number of a parent that has ended": {1, asInit + `
			40 2 40 S 9 bash
			41 40 1 S 5 python3`, []int{40}, []int{41}},
		"a parent that ended meanwhile": {1, asInit + "11 10 1 S 5 python3", nil, []int{11}},
		"a parent that is hidden":       {50, asSubreaper + "11 99 1 S 5 another\n12 2 1 S 5 sh", nil, []int{12}},
	} {
		c := newClearing(clearProc(t, 2, test.proc), test.first, test.spared...)
		f, err := c.look(time.Now().Add(time.Minute))
		require.NoError(t, err, name)
		require.Equal(t, test.want, pidsOf(f.job), name)
		for _, p := range f.job {
			require.False(t, f.shared[p.Group], name)
		}
	}
}

// changing is a /proc that changes after each look at its list.
type changing struct {
	fstest.MapFS
	lists int
	next  func(list int)
}

func (c *changing) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := c.MapFS.ReadDir(name)
	if name == "." {
		c.lists++
		c.next(c.lists)
	}
	return entries, err
}

func TestClearMissesNoProcess(t *testing.T) {
	t.Run("a chain, in which each process starts the next one and ends", func(t *testing.T) {
		f := &changing{MapFS: clearProc(t, 2, "1 0 1 S 1 paiinit\n2 1 1 S 1 paiinit\n10 1 1 S 5 link")}
		f.next = func(list int) { // the one that was listed has gone when it is read
			delete(f.MapFS, fmt.Sprintf("%d/stat", 9+list))
			if list == 4 {
				list = 40 // the last one stays
			}
			if list < 4 || list == 40 {
				addProcess(t, f.MapFS, fmt.Sprintf("%d 1 1 S 6 link", 10+list))
			}
		}
		found, err := newClearing(f, 1).look(time.Now().Add(time.Minute))
		require.NoError(t, err)
		require.Equal(t, []int{50}, pidsOf(found.job))
	})

	t.Run("it never ends", func(t *testing.T) {
		f := &changing{MapFS: clearProc(t, 2, "1 0 1 S 1 paiinit\n2 1 1 S 1 paiinit\n10 1 1 S 5 link")}
		f.next = func(list int) {
			delete(f.MapFS, fmt.Sprintf("%d/stat", 9+list))
			addProcess(t, f.MapFS, fmt.Sprintf("%d 1 1 S 6 link", 10+list))
		}
		_, err := newClearing(f, 1).look(time.Now().Add(20 * time.Millisecond))
		require.ErrorContains(t, err, "/proc shows new processes whenever it is read")
	})

	t.Run("an orphan whose parent ended while /proc was read", func(t *testing.T) {
		f := &changing{MapFS: clearProc(t, 2, `
			1 0 1 S 1 init
			50 1 1 S 1 paiinit
			2 50 1 S 1 paiinit
			9 10 1 S 5 orphan`)}
		f.next = func(int) {}
		seen := false
		c := newClearing(reread{f, "9/stat", func() {
			if seen {
				addProcess(t, f.MapFS, "9 50 1 S 5 orphan")
			}
			seen = true
		}}, 50)
		found, err := c.look(time.Now().Add(time.Minute))
		require.NoError(t, err)
		require.Equal(t, []int{9}, pidsOf(found.job))
	})

	t.Run("a spared process stays spared when its parent ends", func(t *testing.T) {
		f := clearProc(t, 2, `
			1 0 1 S 1 paiinit
			2 1 1 S 1 paiinit
			40 2 40 S 5 bash
			41 40 41 S 5 editor`)
		c := newClearing(f, 1, 40)
		found, err := c.look(time.Now().Add(time.Minute))
		require.NoError(t, err)
		require.Empty(t, found.job)
		delete(f, "40/stat")
		addProcess(t, f, "41 1 41 S 5 editor")
		addProcess(t, f, "42 1 42 S 5 other")
		found, err = c.look(time.Now().Add(time.Minute))
		require.NoError(t, err)
		require.Equal(t, []int{42}, pidsOf(found.job))
		addProcess(t, f, "41 1 41 S 7 another") // has its number
		found, err = c.look(time.Now().Add(time.Minute))
		require.NoError(t, err)
		require.Equal(t, []int{41, 42}, pidsOf(found.job))
	})

	t.Run("a session that begins or ends while /proc is read", func(t *testing.T) {
		f := clearProc(t, 2, "1 0 1 S 1 paiinit\n2 1 1 S 1 paiinit\n40 2 40 S 5 bash\n41 2 41 S 5 bash")
		for _, answers := range [][][]int{{{40}, {41}}, {{41, 40}, nil}, {nil, {40, 41}}} {
			c := newClearing(f, 1)
			c.Spared = func() []int {
				answer := answers[0]
				answers = answers[1:]
				return answer
			}
			found, err := c.look(time.Now().Add(-time.Minute))
			require.NoError(t, err)
			require.Empty(t, found.job)
		}
	})
}

// reread calls a function before each reading of a file.
type reread struct {
	*changing
	file   string
	before func()
}

func (r reread) Open(name string) (fs.File, error) {
	if name == r.file {
		r.before()
	}
	return r.changing.Open(name)
}

func (r reread) ReadFile(name string) ([]byte, error) {
	if name == r.file {
		r.before()
	}
	return r.changing.ReadFile(name)
}

func TestClearNeedsProc(t *testing.T) {
	for name, fsys := range map[string]fs.FS{
		"none": os.DirFS("/nowhere"),
		"that of another namespace": clearProc(t, 7, `
			1 0 1 S 1 init
			7 1 1 S 1 sh`),
	} {
		c := newClearing(fsys, 1)
		c.kill = func(int, unix.Signal) error { panic("kill") }
		_, err := c.run(t.Context())
		require.EqualError(t, err, "ending the processes of the job: "+
			"/proc is missing or belongs to another PID namespace; restarts need it", name)
	}
	_, err := newClearing(clearProc(t, 2, "1 0 1 S 1 init\n2 1 1 S 1 sh"), 50).run(t.Context())
	require.EqualError(t, err,
		"ending the processes of the job: process 50 is not the parent of this process: that is 1")
	_, err = Clear(t.Context(), Clearing{First: -1})
	require.ErrorContains(t, err, "process -1 is not the parent of this process")
}

// A clear that cannot be proven names the processes that are left.
func TestClearNamesWhatIsLeft(t *testing.T) {
	const stuck = `
		1 0 1 S 1 paiinit
		2 1 1 S 1 paiinit
		10 2 1 D 5 python3
		11 1 1 S 5 su
		12 1 1 S 5 sh
		13 2 1 Z+ 5 leader`
	c := newClearing(clearProc(t, 2, stuck), 1)
	c.timeout = 20 * time.Millisecond
	sent := make(map[string]int)
	c.kill = func(pid int, sig unix.Signal) error {
		sent[fmt.Sprint(pid, " ", unix.SignalName(sig))]++
		if pid == 11 {
			return unix.EPERM
		}
		return nil
	}
	done, err := c.run(t.Context())
	require.ErrorContains(t, err, "ending the processes of the job: after ")
	_, text, _ := strings.Cut(err.Error(), "s: ")
	require.Equal(t, "4 left: "+
		"10 (python3, state D): the kernel cannot end it during a system call; "+
		"11 (su, state S): it belongs to another user: operation not permitted; "+
		"12 (sh, state S): it has not ended after SIGKILL; "+
		"13 (leader, state Z): it has not ended after SIGKILL", text)
	require.Zero(t, done.Ended)
	require.Zero(t, done.Killed)
	require.GreaterOrEqual(t, done.Took, 20*time.Millisecond)
	require.Positive(t, sent["10 SIGKILL"])
	require.Zero(t, sent["10 SIGTERM"], "the deadline had passed")

	many := stuck
	for pid := 20; pid < 60; pid++ {
		many += fmt.Sprintf("\n%d 1 1 S 5 x", pid)
	}
	c = newClearing(clearProc(t, 2, many), 1)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the container is being stopped"))
	_, err = c.run(ctx)
	require.ErrorContains(t, err, "ending the processes of the job: the container is being stopped; 44 left: 10 (")
	require.ErrorContains(t, err, "; and 36 more")
}

// Until the deadline, a process that has got SIGTERM may start others to save its work.
func TestClearAsks(t *testing.T) {
	f := clearProc(t, 2, `
		1 0 1 S 1 paiinit
		2 1 1 S 1 paiinit
		10 2 1 S 5 sh
		11 10 1 T 5 python3
		20 1 20 S 5 orted`)
	c := newClearing(f, 1)
	c.Deadline = time.Now().Add(time.Minute)
	var sent []string
	c.kill = func(pid int, sig unix.Signal) error {
		sent = append(sent, fmt.Sprint(pid, " ", strings.TrimPrefix(unix.SignalName(sig), "SIG")))
		return nil
	}
	ask := func() []string {
		var err error
		c.pidfds, err = newPidfds(t.Context())
		require.NoError(t, err)
		defer c.pidfds.close()
		found, err := c.look(c.Deadline)
		require.NoError(t, err)
		sent = nil
		c.ask(found.job)
		return sent
	}
	addProcess(t, f, "14 10 1 S 5 sh")
	require.Equal(t, []string{"10 TERM", "11 TERM", "11 CONT", "14 TERM", "20 TERM"}, ask())
	addProcess(t, f, "14 10 1 S 5 sleep") // it has lost the signal between fork and exec
	addProcess(t, f, "11 10 1 S 5 python3")
	addProcess(t, f, "12 10 1 S 6 save.sh")
	addProcess(t, f, "13 12 1 S 6 cp")
	addProcess(t, f, "21 1 20 S 6 python3")
	addProcess(t, f, "22 2 22 S 6 session")
	require.Equal(t, []string{"14 TERM", "21 TERM", "22 TERM"}, ask())
	require.Empty(t, ask(), "once each")
	delete(f, "10/stat")
	addProcess(t, f, "12 1 1 S 6 save.sh")
	require.Equal(t, []string{"12 TERM", "13 TERM"}, ask(), "it is an orphan now")
	addProcess(t, f, "11 1 1 S 7 another") // has the number of one that was asked
	require.Equal(t, []string{"11 TERM"}, ask())
}

// Processes that start others after all have got SIGKILL are stopped first, whole groups at once.
func TestClearStops(t *testing.T) {
	var sent []string
	c := newClearing(clearProc(t, 2, "2 1 1 S 1 paiinit\n11 1 1 S 5 x\n12 1 1 S 6 other"), 1)
	c.kill = func(pid int, sig unix.Signal) error {
		sent = append(sent, fmt.Sprint(pid, " ", strings.TrimPrefix(unix.SignalName(sig), "SIG")))
		return nil
	}
	var err error
	c.pidfds, err = newPidfds(t.Context())
	require.NoError(t, err)
	defer c.pidfds.close()
	end := func(job ...proc.Process) (bool, []string) {
		sent = nil
		for i := range job {
			job[i].Started = 50 * time.Millisecond
			addProcess(t, c.fsys.(fstest.MapFS), fmt.Sprintf("%d 1 1 S 5 x", job[i].PID))
		}
		again := c.end(found{job: job, shared: map[int]bool{30: true}})
		return again, sent
	}
	again, signals := end(proc.Process{PID: 11, Group: 11})
	require.False(t, again)
	require.Equal(t, []string{"11 KILL"}, signals)

	job := []proc.Process{
		{PID: 11, Group: 11}, {PID: 13, Group: 11}, {PID: 14, Group: 30}, {PID: 15, Group: 0}, {PID: 16, Group: 1},
	}
	again, signals = end(job...)
	require.True(t, again, "the stopped ones may have started more")
	require.Equal(t, []string{"16 STOP", "15 STOP", "14 STOP", "-11 STOP", "13 STOP", "11 STOP"}, signals)
	again, signals = end(job...)
	require.False(t, again)
	require.Equal(t, []string{"11 KILL", "13 KILL", "14 KILL", "15 KILL", "16 KILL"}, signals)

	sent = nil
	c.end(found{job: []proc.Process{{PID: 12, Started: 50 * time.Millisecond}}})
	c.end(found{job: []proc.Process{{PID: 12, Started: 50 * time.Millisecond}}})
	require.Empty(t, sent, "its number belongs to another process by now")
}

func TestLeftFiles(t *testing.T) {
	file := func(n int) *fstest.MapFile { return &fstest.MapFile{Data: make([]byte, n)} }
	f := fstest.MapFS{
		"data.tar":            file(9000),
		"old/x":               file(10),
		"ompi.worker-0.0/old": file(1),
	}
	before, err := fs.ReadDir(f, ".")
	require.NoError(t, err)
	f["ompi.worker-0.0/pid.7/contact.txt"] = file(100)
	f["vader_segment.worker-0.1"] = file(4096)
	f["torch/a/b"] = file(200)
	f["torch/link"] = &fstest.MapFile{Mode: fs.ModeSymlink, Data: []byte("../data.tar")}
	f["old/y"] = file(1000)
	want := []LeftFile{{"vader_segment.worker-0.1", 4096}, {"torch", 200}, {"ompi.worker-0.0", 101}}
	require.Equal(t, want, LeftFiles(f, before))
	require.Len(t, LeftFiles(f, nil), 5)
	require.Empty(t, LeftFiles(os.DirFS("/nowhere"), nil))
}
