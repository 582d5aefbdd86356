package statedir

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// openDir opens a state directory as a start with this identity does.
func openDir(t *testing.T, dir string, own Identity) (*Dir, error) {
	t.Helper()
	return Open(t.Context(), Config{Dir: dir, Owner: own, Program: "/bin/true", Links: []string{"ssh"}})
}

func TestExcludes(t *testing.T) {
	const here, there = "pid:[1]", "pid:[2]"
	of := func(job, attempt, role string, index, rank, size int, space string) Identity {
		return Identity{Job: job, Attempt: attempt, Role: role, Index: index, Rank: rank, Size: size, Space: space}
	}
	for name, row := range map[string]struct {
		own, other Identity
		want       bool
	}{
		"the same": {
			of("a", "1", "worker", 1, 1, 4, here),
			of("a", "1", "worker", 1, 1, 4, here), true,
		},
		"the same, without /proc": {
			of("a", "1", "worker", 1, 1, 4, ""),
			of("a", "1", "worker", 1, 1, 4, here), true,
		},
		"the same, without a name": {
			of("", "", "worker", 1, 1, 4, here),
			of("", "", "worker", 1, 1, 4, here), true,
		},
		"another job": {
			of("a", "", "worker", 1, 1, 4, here),
			of("b", "", "worker", 1, 1, 4, here), false,
		},
		"another attempt": {
			of("a", "2", "worker", 1, 1, 4, here),
			of("a", "1", "worker", 1, 1, 4, here), false,
		},
		"another rank": {
			of("a", "", "worker", 1, 1, 4, here),
			of("a", "", "worker", 2, 2, 4, here), false,
		},
		"another rank of a job without name": {
			of("", "", "worker", 1, 1, 2, here),
			of("", "", "worker", 0, 0, 2, here), false,
		},
		"another role, ranks to be agreed": {
			of("a", "", "ps", 0, -1, 4, here),
			of("a", "", "worker", 0, -1, 4, here), false,
		},
		"the same role, ranks to be agreed": {
			of("a", "", "ps", 0, -1, 4, here),
			of("a", "", "ps", 0, -1, 4, here), true,
		},
		"another container with the same dir": {
			of("", "", "worker", 0, 0, 2, here),
			of("", "", "worker", 0, 0, 2, there), false,
		},
		"docker exec without the flags": {
			of("", "", "worker", 0, 0, 1, here),
			of("a", "1", "worker", 3, 3, 4, here), true,
		},
		"docker exec, no job has a name": {
			of("", "", "worker", 0, 0, 1, here),
			of("", "", "worker", 3, 3, 4, here), true,
		},
		"a named job of one rank": {
			of("b", "", "worker", 0, 0, 1, here),
			of("a", "", "worker", 3, 3, 4, here), false,
		},
		"one of an older paiinit": {
			of("", "", "worker", 0, 0, 1, here),
			Identity{Index: -1, Rank: -1}, true,
		},
	} {
		require.Equal(t, row.want, row.own.excludes(row.other), name)
	}
}

// In a shared place, the name contains user, job, attempt, role and index, and stays short enough for a socket.
func TestDirName(t *testing.T) {
	const whole = 1000
	plain := Identity{Job: "train", Attempt: "2", Role: "worker", Index: 3, Space: "pid:[1]"}
	require.Regexp(t, `^paiinit-[0-9]+-train-2-worker-3-[0-9a-f]{8}$`, plain.dirName(whole))
	require.Regexp(t, `^paiinit-[0-9]+-worker-[0-9a-f]{8}$`, Identity{Role: "worker", Index: -1}.dirName(whole))
	seen := map[string]Identity{}
	for _, id := range []Identity{
		plain,
		{Job: "train", Attempt: "2", Role: "worker", Index: 4, Space: "pid:[1]"},
		{Job: "train", Attempt: "3", Role: "worker", Index: 3, Space: "pid:[1]"},
		{Job: "train", Attempt: "2", Role: "worker", Index: 3, Space: "pid:[2]"}, // two containers with one /dev/shm
		{Job: "train-2", Role: "worker", Index: 3, Space: "pid:[1]"},
		{Job: "../../etc", Role: "worker", Index: 3},
		{Job: ".._.._etc", Role: "worker", Index: 3},
		{Job: strings.Repeat("j", 500), Role: "worker", Index: 3},
		{Job: strings.Repeat("j", 501), Role: "worker", Index: 3},
		{Job: "größe \x00/", Role: "worker", Index: 3},
	} {
		for _, length := range []int{30, 60, whole} {
			name := id.dirName(length)
			require.LessOrEqual(t, len(name), length)
			require.Regexp(t, `^paiinit-[0-9]+-[a-zA-Z0-9._-]+$`, name)
			require.True(t, filepath.IsLocal(name))
			require.NotContains(t, name, "/")
			if other, ok := seen[name]; ok {
				require.Equal(t, id, other, name)
			}
			seen[name] = id
		}
	}
	for _, dir := range plain.places() {
		require.LessOrEqual(t, len(filepath.Join(dir, StatusSocket)), maxSocketPath)
	}
}

func TestStateOfAnEarlierStartIsGone(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		s, err := openDir(t, dir, Identity{Size: 1})
		require.NoError(t, err)
		for _, name := range []string{"status.json", "hostfile", "hostfile.hydra", "ssh_config", "known_hosts"} {
			require.NoFileExists(t, filepath.Join(dir, name))
			require.NoError(t, s.WriteFile(name, []byte("left")))
		}
		s.Close()
	}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 8, "those, bin, tmp and lock: %v", entries)
}

// TestReserve: the space for the host lists can be released and taken again, for the next generation.
func TestReserve(t *testing.T) {
	d, err := openDir(t, t.TempDir(), Identity{Size: 4})
	require.NoError(t, err)
	defer d.Close()
	reserved := func() int64 {
		info, err := os.Stat(d.File("reserved"))
		if err != nil {
			return 0
		}
		return info.Size()
	}
	require.Equal(t, int64(72<<10), reserved())
	require.NoError(t, d.FreeReserve())
	require.NoError(t, d.FreeReserve())
	require.Zero(t, reserved())
	require.NoError(t, d.Reserve(2))
	require.Equal(t, int64(68<<10), reserved())
}

// Open refuses another user's directory, a link and a file in place of the directory, and does not change them.
func TestStatePlaces(t *testing.T) {
	own := Identity{Role: "worker", Size: 1}
	open := func(dir string) error {
		s, err := openDir(t, dir, own)
		if err == nil {
			s.Close()
		}
		return err
	}
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	require.NoError(t, os.Mkdir(at("target"), 0o755))
	require.NoError(t, os.Symlink(at("target"), at("link")))
	require.ErrorContains(t, open(at("link")), "not a directory")
	require.NoError(t, os.WriteFile(at("file"), nil, 0o644))
	require.ErrorContains(t, open(at("file")), "not a directory")
	require.NoError(t, os.Mkdir(at("open"), 0o755))
	require.NoError(t, os.Chmod(at("open"), 0o777))
	require.ErrorContains(t, open(at("open")), "another user can write there")
	if os.Getuid() == 0 {
		require.NoError(t, os.Mkdir(at("another's"), 0o755))
		require.NoError(t, os.Chown(at("another's"), 65534, 65534))
		require.ErrorContains(t, open(at("another's")), "another user can write there")
	}
	require.NoError(t, os.Mkdir(at("locked"), 0o755))
	require.NoError(t, os.Symlink(at("elsewhere"), filepath.Join(at("locked"), lockName)))
	require.Error(t, open(at("locked")), "a link replaces the lock")
	require.ErrorContains(t, open(at(strings.Repeat("long", 30))), "at most 107 bytes")
	for _, name := range []string{"target", "open", "elsewhere"} {
		entries, err := os.ReadDir(at(name))
		require.True(t, len(entries) == 0, "%s: %v, %v", name, entries, err)
	}
}

// One paiinit at a time holds the lock; another start does not change its content.
func TestStateIsLocked(t *testing.T) {
	dir := t.TempDir()
	first := Identity{Job: "a", Role: "worker", Alias: "worker-0", Index: 0, Rank: 0, Size: 2, PID: 7}
	s, err := openDir(t, dir, first)
	require.NoError(t, err)
	require.NoError(t, s.WriteFile("hostfile", []byte("w")))

	_, err = openDir(t, dir, first)
	var running *RunningError
	require.ErrorAs(t, err, &running)
	require.EqualError(t, err, "paiinit is already running in this container: worker-0 (rank 0) of job a, process 7, "+
		"state directory "+dir+"; nothing was started")
	require.FileExists(t, filepath.Join(dir, "hostfile"))

	another := first
	another.Job = "b"
	_, err = openDir(t, dir, another)
	require.ErrorContains(t, err, "in use by worker-0 (rank 0) of job a")
	require.FileExists(t, filepath.Join(dir, "hostfile"))

	s.Close()
	s, err = openDir(t, dir, another)
	require.NoError(t, err, "the lock is free")
	s.Close()
}

// Open waits for a paiinit that is ending.
func TestEndingPaiinitIsAwaited(t *testing.T) {
	dir := t.TempDir()
	old := &Dir{Path: dir}
	held, err := old.tryLock()
	require.NoError(t, err)
	require.True(t, held)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s, err := openDir(t, dir, Identity{Size: 1})
		if err == nil {
			s.Close()
		}
		require.NoError(t, err)
	}()
	select {
	case <-done:
		t.Fatal("the lock was held")
	case <-time.After(2 * lockInterval):
	}
	old.unlock()
	<-done
}

// Open removes the directories of dead jobs in a shared place after a day.
func TestRemoveDead(t *testing.T) {
	shared := t.TempDir()
	t.Setenv("TMPDIR", shared)
	at := func(name string) string { return filepath.Join(shared, name) }
	prefix := ownPrefix(os.Geteuid())
	old := time.Now().Add(-2 * deadAge)
	for _, name := range []string{prefix + "old", prefix + "live", prefix + "young", "paiinit-other", "other"} {
		require.NoError(t, os.Mkdir(at(name), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(at(name), "hostfile"), nil, 0o644))
	}
	live := &Dir{Path: at(prefix + "live")}
	held, err := live.tryLock()
	require.NoError(t, err)
	require.True(t, held)
	defer live.unlock()
	for _, name := range []string{prefix + "old", prefix + "live", "paiinit-other", "other"} {
		require.NoError(t, os.Chtimes(at(name), old, old))
	}
	removeDead()
	require.NoDirExists(t, at(prefix+"old"))
	for _, name := range []string{prefix + "live", prefix + "young", "paiinit-other", "other"} {
		require.FileExists(t, filepath.Join(at(name), "hostfile"), name)
	}
}
