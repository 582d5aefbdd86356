package launch

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/internal/proc"
)

// fakeProc is a /proc as process self sees it.
type fakeProc struct{ fstest.MapFS }

func newFakeProc(self int) fakeProc {
	f := fakeProc{fstest.MapFS{"uptime": {Data: []byte("1 2")}, "99999/comm": {Data: []byte("gone\n")}}}
	f.add(self, 1, self, "paiinit")
	f.MapFS["self/stat"] = f.MapFS[fmt.Sprintf("%d/stat", self)]
	return f
}

// add adds a process with its initial environment.
func (f fakeProc) add(pid, parent, group int, name string, environ ...string) {
	dir := fmt.Sprint(pid)
	line := fmt.Sprintf("%d (%s) S %d %d %d%s 150", pid, name, parent, group, group, strings.Repeat(" 0", 15))
	f.MapFS[dir+"/stat"] = &fstest.MapFile{Data: []byte(line + "\n")}
	f.MapFS[dir+"/environ"] = &fstest.MapFile{Data: []byte(strings.Join(append(environ, "PATH=/bin"), "\x00") + "\x00")}
	f.MapFS[dir+"/cmdline"] = &fstest.MapFile{Data: []byte(name + "\x00-c\x00a b\x00")}
}

func TestVariables(t *testing.T) {
	f := newFakeProc(7)
	f.add(20, 7, 20, "sh", "RANK=1", "EMPTY=", "odd")
	want := map[string]bool{"RANK": true, "EMPTY": true, "odd": true, "PATH": true}
	require.Equal(t, want, variableNames(proc.Environ(f, 20)))
	require.Empty(t, variableNames(proc.Environ(f, 999)))
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
	f.add(40, 1, 40, "orted", ours) // has started its own session
	f.add(41, 40, 41, "train", "PMI_RANK=4")
	f.add(50, 7, 50, "python3", "RANK=1", "LOCAL_RANK=0")
	f.add(60, 0, 60, "train", ours, "PMI_RANK=4") // in another container of the same PID namespace
	all := processesBelow(f, 7, 1)
	require.Equal(t, []int{-50, -41, -21, 31}, Ranks(all, nil))
	own := []string{"LOCAL_RANK=0"} // of the container itself: it marks no rank
	require.Equal(t, []int{-41, -21, 31}, Ranks(all, own))
	require.Empty(t, Ranks(nil, nil))
}

func TestIsSelf(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(self, link))
	require.True(t, IsSelf(self))
	require.True(t, IsSelf(link))
	require.False(t, IsSelf("/bin/sh"))
	require.False(t, IsSelf(link+"/none"))
	require.True(t, RunsSelf(os.Getpid()))
	require.False(t, RunsSelf(-1))
}
