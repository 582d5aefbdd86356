package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/launch"
)

// fakeProc is a /proc in which process self reads.
type fakeProc struct{ fstest.MapFS }

func newFakeProc(self int) fakeProc {
	f := fakeProc{fstest.MapFS{"uptime": {Data: []byte("1 2")}, "99999/comm": {Data: []byte("gone\n")}}}
	f.add(self, 1, self, "paiinit")
	f.MapFS["self/stat"] = f.MapFS[fmt.Sprintf("%d/stat", self)]
	return f
}

// add adds a process with the environment that it was started with.
func (f fakeProc) add(pid, parent, group int, name string, environ ...string) {
	dir := fmt.Sprint(pid)
	line := fmt.Sprintf("%d (%s) S %d %d %d%s 150", pid, name, parent, group, group, strings.Repeat(" 0", 15))
	f.MapFS[dir+"/stat"] = &fstest.MapFile{Data: []byte(line + "\n")}
	f.MapFS[dir+"/environ"] = &fstest.MapFile{Data: []byte(strings.Join(append(environ, "PATH=/bin"), "\x00") + "\x00")}
	f.MapFS[dir+"/cmdline"] = &fstest.MapFile{Data: []byte(name + "\x00-c\x00a b\x00")}
}

func TestParseStat(t *testing.T) {
	rest := " S 1 7 6 0 -1 4194560 1 1 1 1 1 1 1 1 20 0 1 0 150 1"
	want := process{pid: 8, parent: 1, group: 7, session: 6, state: 'S', started: 1500 * time.Millisecond}
	named, ended := want, want
	named.name, ended.exit = "mpi) run) x", 256
	for stat, want := range map[string]process{
		"8 ()" + rest:                                     want,
		"8 (mpi) run) x)" + rest + "\n":                   named,
		"8 ()" + rest + strings.Repeat(" 0", 28) + " 256": ended,
		"8 (a) b) (" + rest:                               {}, // no end of the name
		"8 (sh) S 1 7 6":                                  {},
		"x (sh)" + rest:                                   {},
		"8 (sh) S x" + rest[4:]:                           {},
		"":                                                {},
	} {
		got, ok := parseStat([]byte(stat))
		require.Equal(t, want != process{}, ok, stat)
		if ok {
			require.Equal(t, want, got, stat)
		}
	}
}

func TestProcesses(t *testing.T) {
	f := newFakeProc(7)
	f.add(1, 0, 1, "paiinit")
	f.add(20, 7, 20, "sh")
	f.add(22, 20, 20, "python3")
	f.add(21, 20, 20, "cat")
	f.add(5, 22, 20, "loader") // numbers are used again
	f.add(30, 0, 30, "docker-exec")
	all := readProcesses(f, 7)
	require.Len(t, all, 7)
	require.Equal(t, []int{7, 20, 21, 22, 5}, all.below(1))
	require.Equal(t, []int{21, 22}, all.children(20))
	require.Empty(t, all.below(5))
	require.Nil(t, readProcesses(f, 8), "another PID namespace's /proc")
	require.Empty(t, readProcesses(os.DirFS("/nowhere"), 7).below(1))
	require.Equal(t, []string{"sh", "-c", "a b"}, commandLine(f, 20))
	require.Nil(t, commandLine(f, 999))

	circle := processes{1: {pid: 1, parent: 3}, 2: {pid: 2, parent: 1}, 3: {pid: 3, parent: 2}}
	require.Equal(t, []int{2, 3}, circle.below(1))
}

func TestProcessesOfThisMachine(t *testing.T) {
	all := readProcesses(os.DirFS("/proc"), os.Getpid())
	require.Equal(t, os.Getppid(), all[os.Getpid()].parent)
	require.Contains(t, all.children(os.Getppid()), os.Getpid())
	require.Equal(t, os.Args, commandLine(os.DirFS("/proc"), os.Getpid()))
}

func TestRanks(t *testing.T) {
	const ours = "PAIINIT_AGENT=/run/paiinit/agent.sock"
	f := newFakeProc(7)
	f.add(20, 7, 20, "mpirun", ours)
	f.add(21, 20, 21, "train", "OMPI_COMM_WORLD_RANK=0", "PMIX_RANK=0")
	f.add(22, 21, 21, "loader", "OMPI_COMM_WORLD_RANK=0")
	f.add(30, 7, 30, "sh", "PAIINIT_AGENT=/dev/shm/x/agent.sock") // a session; the launcher forwards rank 0's value
	f.add(31, 30, 30, "python3", "PAIINIT_AGENT=/tmp/paiinit-0/agent.sock", "HOROVOD_RANK=3")
	f.add(32, 31, 30, "python3", "HOROVOD_RANK=3")
	f.add(40, 1, 40, "orted", ours) // left its session
	f.add(41, 40, 41, "train", "PMI_RANK=4")
	f.add(50, 7, 50, "python3", "RANK=1", "LOCAL_RANK=0")
	f.add(60, 0, 60, "train", ours, "PMI_RANK=4") // of another container in the same PID namespace
	all := readProcesses(f, 7)
	job := launchProcesses(f, all, all.below(1))
	require.Equal(t, []int{-50, -41, -21, 31}, launch.Ranks(job, nil))
	own := []string{"LOCAL_RANK=0"} // of the container itself: it makes no rank
	require.Equal(t, []int{-41, -21, 31}, launch.Ranks(job, own))
	require.Empty(t, launch.Ranks(nil, nil))
}
