package main

import (
	"bufio"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/paiinit/paiinit/envspec"
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

// identity says which start of paiinit owns a state directory. Its lock file holds it.
type identity struct {
	Job     string    `json:"job"` // "" = the job has no name
	Attempt string    `json:"attempt"`
	Role    string    `json:"role"`
	Index   int       `json:"index"` // -1 = unknown
	Rank    int       `json:"rank"`  // -1 = to be agreed
	Size    int       `json:"size"`
	Alias   string    `json:"alias"`
	Host    string    `json:"host"`
	PID     int       `json:"pid"`   // of the agent, in the namespace Space
	Space   string    `json:"space"` // PID namespace; "" = unknown, without /proc
	Nonce   string    `json:"nonce"`
	Start   time.Time `json:"start"`

	dir string // the state directory
}

func newIdentity(job envspec.Job, host, nonce string, start time.Time) identity {
	space, _ := os.Readlink("/proc/self/ns/pid") // "" without /proc
	return identity{
		Job: job.ID, Attempt: job.Attempt, Role: job.Role, Index: job.Index, Rank: job.Rank, Size: job.Size,
		Alias: job.Alias, Host: host, PID: os.Getpid(), Space: space, Nonce: nonce, Start: start,
	}
}

// excludes reports whether o, which runs, keeps a paiinit with this identity from starting. Another job may start
// beside it, and so may another rank of the same job and a container that only shares the directory. A start that names
// neither a job nor other ranks is a mistake: `docker exec` has the environment of the container, but not the flags of
// its ENTRYPOINT.
func (id identity) excludes(o identity) bool {
	switch {
	case id.Space != "" && o.Space != "" && id.Space != o.Space:
		return false
	case id.Job != "" && o.Job != "" && (id.Job != o.Job || id.Attempt != o.Attempt):
		return false
	case id.Size == 1:
		return true
	case id.Rank >= 0 && o.Rank >= 0:
		return id.Rank == o.Rank
	}
	return id.Role == o.Role && id.Index == o.Index
}

func (id identity) String() string {
	var b strings.Builder
	b.WriteString(id.Alias)
	if id.Rank >= 0 {
		fmt.Fprintf(&b, " (rank %d)", id.Rank)
	}
	if id.Job != "" {
		fmt.Fprintf(&b, " of job %s", id.Job)
	}
	if id.Host != "" {
		fmt.Fprintf(&b, " on %s", id.Host)
	}
	if id.PID > 0 {
		fmt.Fprintf(&b, ", process %d", id.PID)
	}
	return fmt.Sprintf("%s, state directory %s", &b, id.dir)
}

// runningError says that this container has a paiinit already.
type runningError struct {
	owner identity
}

func (e *runningError) Error() string {
	return fmt.Sprintf("paiinit is already running in this container: %v; nothing was started", e.owner)
}

// stateDirs are the directories to try, best first.
func (id identity) stateDirs() []string {
	dirs := []string{firstPlace}
	for _, parent := range sharedPlaces() {
		dirs = append(dirs, filepath.Join(parent, id.dirName(maxSocketPath-len(parent)-len("//")-len(questionName))))
	}
	return dirs
}

// dirName is the name of the state directory in a place that others use, too: user, job, attempt, role and index for
// people, as far as they fit into length bytes, and a hash of all of them and of the PID namespace, as containers may
// share the place.
func (id identity) dirName(length int) string {
	parts := []string{id.Job, id.Attempt, id.Role, strconv.Itoa(id.Index), id.Space}
	hash := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	prefix, suffix := ownPrefix(os.Geteuid()), hex.EncodeToString(hash[:4])
	readable := strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("._-", r) {
			return r
		}
		return '_'
	}, strings.Join(slices.DeleteFunc(parts[:4], func(s string) bool { return s == "" || s == "-1" }), "-"))
	const mostReadable = 48 // a longer name only makes the paths in variables hard to read
	readable = readable[:max(0, min(len(readable), mostReadable, length-len(prefix)-len("-")-len(suffix)))]
	return strings.TrimSuffix(prefix+readable, "-") + "-" + suffix
}

// ownPrefix begins the names of a user's state directories in shared places.
func ownPrefix(uid int) string { return "paiinit-" + strconv.Itoa(uid) + "-" }

// knownDirs are the state directories that may exist in this container: named is the one of --state-dir or
// PAIINIT_STATE_DIR; "" = none.
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
	if underPaiinit() {
		dirs = append(dirs, socketDirs()...)
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// socketDirs are the state directories whose sockets are open in this network namespace: they may lie anywhere
// (--state-dir).
func socketDirs() []string {
	f, err := os.Open("/proc/net/unix")
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	var dirs []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if dir, ok := strings.CutSuffix(lines.Text(), "/"+questionName); ok {
			if start := strings.IndexByte(dir, '/'); start >= 0 { // "NUM REFCOUNT PROTOCOL FLAGS TYPE STATE INODE PATH"
				dirs = append(dirs, dir[start:])
			}
		}
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// underPaiinit reports whether another process with this program's name is the first one of this container.
// /proc/1/comm is readable by every user, /proc/1/exe is not.
func underPaiinit() bool {
	comm, err := os.ReadFile("/proc/1/comm")
	return err == nil && os.Getpid() != 1 && os.Getppid() != 1 && strings.TrimSpace(string(comm)) == "paiinit"
}

// owner returns the process that serves the state directory, by its number in our PID namespace (0 = it is in another
// one).
func owner(dir string) (pid int, err error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: filepath.Join(dir, questionName), Net: "unix"})
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	pid, err = unixsock.CheckServer(conn)
	var other *unixsock.UserError
	if errors.As(err, &other) {
		return 0, fmt.Errorf("%s: served by user %d", dir, other.UID)
	}
	return pid, err
}

// live returns those of the state directories that a running paiinit serves, with the identity that each lock file
// tells.
func live(dirs []string) []identity {
	var found []identity
	for _, dir := range dirs {
		if _, err := owner(dir); err == nil {
			id, _ := readIdentity(dir) // what cannot be read is a paiinit without a name
			found = append(found, id)
		}
	}
	return found
}

// maxIdentity is far more than any identity has, in bytes.
const maxIdentity = 1 << 16

func readIdentity(dir string) (identity, error) {
	id := identity{Index: -1, Rank: -1, Alias: "a paiinit", dir: dir}
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return id, err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxIdentity))
	if err != nil {
		return id, err
	}
	err = json.Unmarshal(b, &id)
	return id, err
}

// severalError says that this process cannot tell which paiinit it is meant to ask.
type severalError struct{ dirs []identity }

func (e *severalError) Error() string {
	var list []string
	for _, id := range e.dirs {
		list = append(list, id.String())
	}
	return fmt.Sprintf("%d paiinits are running here, say which one with PAIINIT_STATE_DIR: %s",
		len(e.dirs), strings.Join(list, "; "))
}

// chooseDir returns the state directory of the paiinit that this process asks: the paiinit that the command line
// names, else the nearest ancestor, else what PAIINIT_AGENT or PAIINIT_STATE_DIR names, else the only paiinit that
// runs here.
//
// Launchers forward PAIINIT_AGENT and PATH from rank 0 to all ranks (mpirun -x, horovodrun), so that both may name the
// paiinit of another rank, on the same machine even. Ancestors cannot be forwarded.
func chooseDir(environ []string, named string) (string, error) {
	if named != "" {
		return named, nil
	}
	agent, stateDir := lookup(environ, "PAIINIT_AGENT"), lookup(environ, "PAIINIT_STATE_DIR")
	if agent != "" {
		agent = filepath.Dir(agent)
	}
	dirs := slices.Concat([]string{agent}, knownDirs(stateDir), socketDirs())
	if dir := nearest(os.DirFS("/proc"), os.Getpid(), dirs); dir != "" {
		return dir, nil
	}
	if given := cmp.Or(agent, stateDir); given != "" {
		return given, nil
	}
	switch running := live(visibleDirs("")); len(running) {
	case 0:
		return firstPlace, nil
	case 1:
		return running[0].dir, nil
	default:
		return "", &severalError{running}
	}
}

// nearest returns the state directory whose paiinit is the nearest ancestor of a process; "" = none is.
func nearest(fsys fs.FS, pid int, dirs []string) (best string) {
	least := -1
	for _, dir := range dirs {
		if agent, err := owner(dir); err == nil {
			if n := proc.Generations(fsys, pid, agent); n >= 0 && (least < 0 || n < least) {
				best, least = dir, n
			}
		}
	}
	return best
}
