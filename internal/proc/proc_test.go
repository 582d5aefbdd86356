package proc_test

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/internal/proc"
)

// line returns the kernel's line for a process: 52 fields.
func line(p proc.Process) string {
	flags := 4194560
	if p.Exiting {
		flags |= 4
	}
	return fmt.Sprintf("%d (%s) %s %d %d %d 0 -1 %d%s %d 0 %d%s %d\n",
		p.PID, p.Name, []byte{p.State}, p.Parent, p.Group, p.Session, flags,
		strings.Repeat(" 3", 10), p.Threads, p.Started/(10*time.Millisecond), strings.Repeat(" 5", 29), p.Exit)
}

func TestParse(t *testing.T) {
	want := proc.Process{
		PID: 8, Parent: 1, Group: 7, Session: 6, State: 'S', Started: 1500 * time.Millisecond, Threads: 1,
	}
	for _, name := range []string{
		"sh", "", " ", "a b", "mpi) run) x", ") (", "((", "))", "8 (sh) S 1 2 3", "two\nlines))", "a) R 1 (b) Z 7 12",
	} {
		p := want
		p.Name = name
		got, ok := proc.Parse([]byte(line(p)))
		require.True(t, ok, name)
		require.Equal(t, p, got)
	}

	zombie := want
	zombie.State, zombie.Exit, zombie.Exiting = 'Z', 256, true
	require.False(t, want.Ended())
	got, ok := proc.Parse([]byte(line(zombie)))
	require.True(t, ok)
	require.Equal(t, zombie, got)
	require.True(t, got.Ended())
	got.Threads = 2
	require.False(t, got.Ended(), "only its first thread has ended")

	old, ok := proc.Parse([]byte("8 () S 1 7 6 0 -1 4194560 1 1 1 1 1 1 1 1 20 0 1 0 150 1\n"))
	require.True(t, ok, "kernels before 3.5 do not show the exit status")
	require.Equal(t, want, old)
}

func TestParseRefusesWhatIsNotALine(t *testing.T) {
	rest := " S 1 7 6 0 -1 4194560 1 1 1 1 1 1 1 1 20 0 1 0 150 1\n"
	for _, stat := range []string{
		"", "\n", "12", "12 )(", "x (sh)" + rest, "8 9 (sh)" + rest, "99999999999999999999 (sh)" + rest,
		"(sh)" + rest, "0 (sh)" + rest, "-8 (sh)" + rest,
		"8 sh" + rest, "8 (a) b) (" + rest, "8 (sh) S", "8 (sh) S x" + rest[4:], "8 (sh) SS" + rest[2:],
		"8 (sh) S 1 7 6",
	} {
		_, ok := proc.Parse([]byte(stat))
		require.False(t, ok, "%q", stat)
	}
	whole := []byte("8 (mpi) run)" + rest)
	start := strings.Index(string(whole), " 150") + len(" 150")
	for n := range whole {
		p, ok := proc.Parse(whole[:n])
		require.Equal(t, n > start, ok, "half-written: %q", whole[:n])
		if ok {
			require.Equal(t, 1500*time.Millisecond, p.Started)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range []string{"sh", ") (", "a b) S 1", ""} {
		f.Add([]byte(line(proc.Process{PID: 8, Name: name, Parent: 1, Group: 7, Session: 6, State: 'Z', Exit: 9})))
	}
	f.Add([]byte("8 (sh) S 1 7 6 0 -1 4194560"))
	f.Add([]byte("12 )("))
	f.Fuzz(func(t *testing.T, stat []byte) {
		p, ok := proc.Parse(stat)
		if !ok {
			require.Zero(t, p)
			return
		}
		require.Positive(t, p.PID)
		if p.Started < 0 || p.Started%(10*time.Millisecond) != 0 {
			return // after 292 years
		}
		again, ok := proc.Parse([]byte(line(p)))
		require.True(t, ok, "%q", stat)
		require.Equal(t, p, again)
	})
}

// tree is a /proc with processes that each have a name and a command line.
type tree struct{ fstest.MapFS }

func newTree(self int) tree {
	f := tree{fstest.MapFS{
		"uptime":     {Data: []byte("1 2")},
		"99999/comm": {Data: []byte("gone\n")}, // vanished between the listing and the read
		"77/stat":    {Data: []byte("77 (half) S 1 7")},
		"net/stat":   {Data: []byte(line(proc.Process{PID: 500, State: 'S'}))},
	}}
	f.add(self, 1, "paiinit")
	f.MapFS["self/stat"] = f.MapFS[fmt.Sprintf("%d/stat", self)]
	return f
}

func (f tree) add(pid, parent int, name string) {
	dir := fmt.Sprint(pid)
	stat := line(proc.Process{PID: pid, Name: name, Parent: parent, Group: pid, Session: pid, State: 'S'})
	f.MapFS[dir+"/stat"] = &fstest.MapFile{Data: []byte(stat)}
	f.MapFS[dir+"/cmdline"] = &fstest.MapFile{Data: []byte(name + "\x00-c\x00a b\x00")}
	f.MapFS[dir+"/environ"] = &fstest.MapFile{Data: []byte("A=1\x00\x00B=x y\x00")}
}

func TestCatches(t *testing.T) {
	f := fstest.MapFS{
		"1/status": {Data: []byte(
			"Name:\tx\\nSigCgt:\t0\nSigIgn:\tffffffffffffffff\nSigCgt:\t0000000167cb7ef3\nCapInh:\t0\n")},
		"2/status": {Data: []byte("Name:\tx\nSigIgn:\tffffffffffffffff\nSigCgt:\t0000000000006206")}, // cut
		"3/status": {Data: []byte("Name:\tx\nSigCgt:\t\n")},
		"4/status": {Data: []byte("SigCgt:\tffffffffffffffffff\n")},
	}
	require.True(t, proc.Catches(f, 1, syscall.SIGCONT))
	require.False(t, proc.Catches(f, 1, syscall.SIGQUIT))
	for pid := 2; pid <= 5; pid++ {
		require.False(t, proc.Catches(f, pid, syscall.SIGCONT), pid)
	}
	require.False(t, proc.Catches(f, 1, 0))
}

func TestTable(t *testing.T) {
	f := newTree(7)
	f.add(1, 0, "paiinit")
	f.add(20, 7, "sh) (x")
	f.add(22, 20, "python3")
	f.add(21, 20, "cat")
	f.add(5, 22, "loader") // the kernel has reused the PID
	f.add(30, 0, "docker-exec")
	all := proc.ReadAll(f, 7)
	require.Len(t, all, 7)
	require.Equal(t, []int{7, 20, 21, 22, 5}, all.Below(1))
	require.Equal(t, []int{20, 21, 22, 5}, all.Below(7))
	require.Equal(t, []int{21, 22, 5}, all.Below(20))
	require.Empty(t, all.Below(5))
	require.Nil(t, proc.ReadAll(f, 8), "another PID namespace's /proc")
	require.Empty(t, proc.ReadAll(os.DirFS("/nowhere"), 7).Below(1))
	require.Equal(t, []int{22, 20, 7, 1}, slices.Collect(proc.Ancestors(f, 5)))
	require.Empty(t, slices.Collect(proc.Ancestors(f, 1)))
	require.Empty(t, slices.Collect(proc.Ancestors(f, 99999)))

	circle := proc.Table{1: {PID: 1, Parent: 3}, 2: {PID: 2, Parent: 1}, 3: {PID: 3, Parent: 2}}
	require.Equal(t, []int{2, 3}, circle.Below(1))
	f.add(40, 41, "a")
	f.add(41, 40, "b")
	require.Equal(t, []int{41, 40}, slices.Collect(proc.Ancestors(f, 40)))
}

func TestAdd(t *testing.T) {
	f := newTree(7)
	f.add(1, 0, "paiinit")
	delete(f.MapFS, "99999/comm") // Add reports it as long as it is listed
	delete(f.MapFS, "77/stat")
	all := proc.ReadAll(f, 7)
	require.Len(t, all, 2)
	more, err := all.Add(f)
	require.NoError(t, err)
	require.False(t, more)

	f.add(20, 7, "sh")
	more, err = all.Add(f)
	require.NoError(t, err)
	require.True(t, more)
	require.Equal(t, "sh", all[20].Name)
	more, err = all.Add(f)
	require.NoError(t, err)
	require.False(t, more)

	f.MapFS["21/comm"] = &fstest.MapFile{} // listed, but gone when it is read
	more, err = all.Add(f)
	require.NoError(t, err)
	require.True(t, more, "it may have left a child")
	require.NotContains(t, all, 21)

	f.MapFS["22/stat"] = &fstest.MapFile{Data: []byte("22 (half) S 1 7")}
	_, err = all.Add(f)
	require.ErrorContains(t, err, "22/stat")
	_, err = all.Add(os.DirFS("/nowhere"))
	require.Error(t, err)
}

// The agent of a process is its nearest ancestor that is an agent, whatever the environment says. A launcher's daemon
// is an orphan.
func TestGenerations(t *testing.T) {
	fsys := fstest.MapFS{}
	for pid, stat := range map[string]string{
		"1":  "1 (paiinit) S 0 1 1",        // the first process of rank 0
		"2":  "2 (paiinit) S 1 1 1",        // its agent
		"3":  "3 (mpirun) S 2 3 3",         //
		"4":  "4 (a) S (rank)) S 3 3 3",    //
		"5":  "5 (orted) S 1 5 5",          // an orphan
		"6":  "6 (sh) S 5 5 5",             //
		"10": "10 (paiinit) S 3 10 10",     // rank 1, started by mpirun
		"11": "11 (paiinit) S 10 10 10",    //
		"12": "12 (sh) S 11 12 12",         //
		"20": "20 (supervisord) S 0 20 20", //
		"21": "21 (paiinit) S 20 20 20",    // an agent whose first process has died
		"22": "22 (sh) S 20 20 20",         //
	} {
		fsys[pid+"/stat"] = &fstest.MapFile{Data: []byte(stat + strings.Repeat(" 0", 46))}
	}
	for _, row := range []struct{ pid, agent, want int }{
		{4, 2, 2}, {6, 2, 2}, {5, 2, 1}, {12, 11, 1}, {12, 2, 4}, {11, 11, 0}, {4, 11, -1}, {22, 21, -1}, {22, 2, -1},
		{4, 0, -1}, {4, 99, -1}, {99, 2, -1},
	} {
		require.Equal(t, row.want, proc.Generations(fsys, row.pid, row.agent), "%v", row)
	}
}

func TestWords(t *testing.T) {
	f := newTree(7)
	f.add(20, 7, "sh")
	require.Equal(t, []string{"sh", "-c", "a b"}, proc.CommandLine(f, 20))
	require.Equal(t, []string{"A=1", "", "B=x y"}, proc.Environ(f, 20))
	require.Nil(t, proc.CommandLine(f, 999))
	f.MapFS["20/cmdline"] = &fstest.MapFile{Data: []byte("sshd: alice [priv]")} // it has written a title there
	require.Equal(t, []string{"sshd: alice [priv]"}, proc.CommandLine(f, 20))
	f.MapFS["20/cmdline"] = &fstest.MapFile{} // a zombie has none
	require.Nil(t, proc.CommandLine(f, 20))
}

func TestRead(t *testing.T) {
	f := newTree(7)
	p, err := proc.Read(f, 7)
	require.NoError(t, err)
	require.Equal(t, "paiinit", p.Name)
	_, err = proc.Read(f, 99999)
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = proc.Read(f, 77)
	require.ErrorContains(t, err, "77/stat")
}

func TestThisMachine(t *testing.T) {
	fsys := os.DirFS("/proc")
	all := proc.ReadAll(fsys, os.Getpid())
	require.Equal(t, os.Getppid(), all[os.Getpid()].Parent)
	require.Equal(t, syscall.Getpgrp(), all[os.Getpid()].Group)
	require.Contains(t, all.Below(os.Getppid()), os.Getpid())
	require.Equal(t, os.Getppid(), slices.Collect(proc.Ancestors(fsys, os.Getpid()))[0])
	require.Equal(t, os.Args, proc.CommandLine(fsys, os.Getpid()))
	require.Subset(t, proc.Environ(fsys, os.Getpid()), []string{"PATH=" + os.Getenv("PATH")})

	cmd := exec.Command("/bin/sh", "-c", "exit 3")
	require.NoError(t, cmd.Start())
	require.Eventually(t, func() bool {
		p, err := proc.Read(fsys, cmd.Process.Pid)
		return err == nil && p.State == 'Z' && p.Exiting && p.Exit == 3<<8 && p.Ended()
	}, 10*time.Second, time.Millisecond)
	require.Error(t, cmd.Wait())
	_, err := proc.Read(fsys, cmd.Process.Pid)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestRunDelay(t *testing.T) {
	fsys := fstest.MapFS{
		"self/task/7/schedstat": {Data: []byte("100 2000 3\n")},
		"self/task/8/schedstat": {Data: []byte("5 40 1\n")},
		"self/task/9/comm":      {Data: []byte("gone\n")},
	}
	require.Equal(t, 2040*time.Nanosecond, proc.RunDelay(fsys))
	require.Zero(t, proc.RunDelay(fstest.MapFS{}))
}
