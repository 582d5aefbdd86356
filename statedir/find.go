package statedir

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/paiinit/paiinit/internal/proc"
	"github.com/paiinit/paiinit/internal/unixsock"
)

// firstPlace is the state directory wherever it can be: users' scripts name it.
const firstPlace = "/run/paiinit"

// sharedPlaces are directories that several jobs, and several users, may have in common. State directories in them
// carry the names of user, job and rank.
func sharedPlaces() []string {
	return slices.Compact([]string{"/dev/shm", filepath.Clean(os.TempDir())})
}

// knownDirs are the state directories that may exist in this container: the named one alone, if there is one.
func knownDirs(named string) []string {
	if named != "" {
		return []string{named}
	}
	dirs := []string{firstPlace}
	prefix := ownPrefix(os.Geteuid())
	if os.Geteuid() == 0 {
		prefix = "paiinit-" // root may ask every user's
	}
	for _, parent := range sharedPlaces() {
		entries, err := os.ReadDir(parent)
		if err != nil {
			continue
		}
		for _, e := range entries {
			if e.IsDir() && strings.HasPrefix(e.Name(), prefix) {
				dirs = append(dirs, filepath.Join(parent, e.Name()))
			}
		}
	}
	return dirs
}

// visibleDirs are the knownDirs and, in a container whose first process is another paiinit, all that are in use there.
func visibleDirs(named string) []string {
	dirs := knownDirs(named)
	if UnderPaiinit() {
		dirs = append(dirs, socketDirs()...)
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// socketDirs are the state directories whose sockets are open in this network namespace: they may lie anywhere.
func socketDirs() []string {
	f, err := os.Open("/proc/net/unix")
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	var dirs []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if dir, ok := strings.CutSuffix(lines.Text(), "/"+StatusSocket); ok {
			if start := strings.IndexByte(dir, '/'); start >= 0 { // "NUM REFCOUNT PROTOCOL FLAGS TYPE STATE INODE PATH"
				dirs = append(dirs, dir[start:])
			}
		}
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// UnderPaiinit reports whether another process with this program's name is the first one of this container.
// /proc/1/comm is readable by every user, /proc/1/exe is not.
func UnderPaiinit() bool {
	comm, err := os.ReadFile("/proc/1/comm")
	return err == nil && os.Getpid() != 1 && os.Getppid() != 1 && strings.TrimSpace(string(comm)) == "paiinit"
}

// server returns the process that serves the state directory, by its number in our PID namespace (0 = it is in another
// one).
func server(dir string) (pid int, err error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: filepath.Join(dir, StatusSocket), Net: "unix"})
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	pid, err = unixsock.CheckServer(conn)
	var other *unixsock.UserError // who may create a directory with this user's name in a shared place
	if errors.As(err, &other) {
		return 0, fmt.Errorf("%s: served by user %d", dir, other.UID)
	}
	return pid, err
}

// live returns those of the state directories that a running paiinit serves, with the identity that each lock file
// tells.
func live(dirs []string) []Identity {
	var found []Identity
	for _, dir := range dirs {
		if _, err := server(dir); err == nil {
			id, _ := readIdentity(dir) // what cannot be read is a paiinit without a name
			found = append(found, id)
		}
	}
	return found
}

// Find returns the state directory of the paiinit that this process may ask: the nearest ancestor, else the directory
// of agent, the path of an agent's socket, else the named directory, else that of the only paiinit that runs here. If
// several run here, it returns them.
//
// Launchers forward the variables of rank 0 to all ranks (mpirun -x, horovodrun), so that both agent and named may be
// those of the paiinit of another rank, on the same machine even. Ancestors cannot be forwarded.
func Find(agent, named string) (dir string, several []Identity) {
	if agent != "" {
		agent = filepath.Dir(agent)
	}
	dirs := slices.Concat([]string{agent}, knownDirs(named), socketDirs())
	if dir := nearest(os.DirFS("/proc"), os.Getpid(), dirs); dir != "" {
		return dir, nil
	}
	if given := cmp.Or(agent, named); given != "" {
		return given, nil
	}
	switch running := live(visibleDirs("")); len(running) {
	case 0:
		return firstPlace, nil
	case 1:
		return running[0].dir, nil
	default:
		return "", running
	}
}

// nearest returns the state directory whose paiinit is the nearest ancestor of a process; "" = none is.
func nearest(fsys fs.FS, pid int, dirs []string) (best string) {
	least := -1
	for _, dir := range dirs {
		if agent, err := server(dir); err == nil {
			if n := proc.Generations(fsys, pid, agent); n >= 0 && (least < 0 || n < least) {
				best, least = dir, n
			}
		}
	}
	return best
}
