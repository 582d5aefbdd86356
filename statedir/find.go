package statedir

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/paiinit/paiinit/internal/proc"
	"github.com/paiinit/paiinit/internal/unixsock"
)

// FirstPlace is the preferred state directory, because users' scripts name it.
const FirstPlace = "/run/paiinit"

// sharedPlaces returns directories that several jobs and several users may share. State directories in them carry the
// names of user, job and rank.
func sharedPlaces() []string {
	return slices.Compact([]string{"/dev/shm", filepath.Clean(os.TempDir())})
}

// sharedDirs returns the directories in shared places whose names begin with prefix.
func sharedDirs(prefix string) (dirs []string) {
	for _, parent := range sharedPlaces() {
		entries, _ := os.ReadDir(parent)
		for _, e := range entries {
			if e.IsDir() && strings.HasPrefix(e.Name(), prefix) {
				dirs = append(dirs, filepath.Join(parent, e.Name()))
			}
		}
	}
	return dirs
}

// knownDirs returns the state directories that may exist in this container, or only named if it is not empty.
func knownDirs(named string) []string {
	if named != "" {
		return []string{named}
	}
	prefix := ownPrefix(os.Geteuid())
	if os.Geteuid() == 0 {
		prefix = "paiinit-" // root may ask the paiinit of every user
	}
	return append([]string{FirstPlace}, sharedDirs(prefix)...)
}

// visibleDirs returns the knownDirs and, if process 1 of this container is another paiinit, all directories in use
// there.
func visibleDirs(named string) []string {
	dirs := knownDirs(named)
	if UnderPaiinit() {
		dirs = append(dirs, socketDirs()...)
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// socketDirs returns the state directories whose sockets are open in this network namespace, wherever they are.
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

// UnderPaiinit reports whether process 1 of this container is another process with this program's name. It reads
// /proc/1/comm, because only root may read /proc/1/exe.
func UnderPaiinit() bool {
	comm, err := os.ReadFile("/proc/1/comm")
	return err == nil && os.Getpid() != 1 && os.Getppid() != 1 && strings.TrimSpace(string(comm)) == "paiinit"
}

// server returns the PID of the process that serves the state directory; 0 = it is in another PID namespace.
func server(dir string) (pid int, err error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: filepath.Join(dir, StatusSocket), Net: "unix"})
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	pid, err = unixsock.CheckServer(conn)
	// Another user may create a directory with this user's name in a shared place.
	if other, ok := errors.AsType[*unixsock.UserError](err); ok {
		return 0, fmt.Errorf("%s: served by user %d", dir, other.UID)
	}
	return pid, err
}

// live returns the identities, from the lock files, of the state directories that a running paiinit serves.
func live(dirs []string) []Identity {
	var found []Identity
	for _, dir := range dirs {
		if _, err := server(dir); err == nil {
			id, _ := readIdentity(dir) // on failure the identity has no names
			found = append(found, id)
		}
	}
	return found
}

// Find returns the state directory of the paiinit that this process may ask. The order is: the nearest ancestor, the
// directory of the agent's socket agent, the directory named, the only paiinit that runs here. If several run here,
// Find returns a *SeveralError.
//
// Launchers forward the variables of rank 0 to all ranks (mpirun -x, horovodrun), so agent and named may belong to the
// paiinit of another rank, even on the same machine. Ancestors cannot be forwarded.
func Find(agent, named string) (string, error) {
	if agent != "" {
		agent = filepath.Dir(agent)
	}
	dirs := slices.Concat([]string{agent}, knownDirs(named), socketDirs())
	if dir := nearest(dirs); dir != "" {
		return dir, nil
	}
	if given := cmp.Or(agent, named); given != "" {
		return given, nil
	}
	switch running := live(visibleDirs("")); len(running) {
	case 0:
		return FirstPlace, nil
	case 1:
		return running[0].dir, nil
	default:
		return "", &SeveralError{running}
	}
}

// SeveralError says that several paiinits run here, and the caller of Find named none of them.
type SeveralError struct{ Running []Identity }

func (e *SeveralError) Error() string {
	var list []string
	for _, id := range e.Running {
		list = append(list, id.String())
	}
	return fmt.Sprintf("%d paiinits are running here, say which one with PAIINIT_STATE_DIR: %s",
		len(e.Running), strings.Join(list, "; "))
}

// nearest returns the state directory of the paiinit that is the nearest ancestor of this process; "" if no ancestor is
// a paiinit.
func nearest(dirs []string) (best string) {
	least := math.MaxInt
	for _, dir := range dirs {
		if agent, err := server(dir); err == nil {
			if n := proc.Generations(proc.System{}, os.Getpid(), agent); n >= 0 && n < least {
				best, least = dir, n
			}
		}
	}
	return best
}
