package statedir

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Identity identifies the start of paiinit that owns a state directory. The lock file holds it.
type Identity struct {
	Job     string    `json:"job"` // "" = the job has no name
	Attempt string    `json:"attempt"`
	Role    string    `json:"role"`
	Index   int       `json:"index"` // -1 = unknown
	Rank    int       `json:"rank"`  // -1 = not agreed yet
	Size    int       `json:"size"`
	Alias   string    `json:"alias"`
	Host    string    `json:"host"`
	PID     int       `json:"pid"`   // of the agent, in the namespace Space
	Space   string    `json:"space"` // PID namespace; "" = unknown, without /proc
	Nonce   string    `json:"nonce"`
	Start   time.Time `json:"start"`

	dir string // the state directory
}

// OfThisProcess returns the identity with the PID and the PID namespace of this process.
func (id Identity) OfThisProcess() Identity {
	id.PID = os.Getpid()
	id.Space, _ = os.Readlink("/proc/self/ns/pid") // "" without /proc
	return id
}

// excludes reports whether the running paiinit o keeps a paiinit with this identity from starting. Another job, another
// rank of the same job, and a container that only shares the directory may start. A start that names neither a job nor
// other ranks is a mistake: `docker exec` has the container's environment, but not the flags of its ENTRYPOINT.
func (id Identity) excludes(o Identity) bool {
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

// String names the rank, the job, the host, the process and the state directory.
func (id Identity) String() string {
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

// places returns the directories to try, best first.
func (id Identity) places() []string {
	dirs := []string{FirstPlace}
	for _, parent := range sharedPlaces() {
		dirs = append(dirs, filepath.Join(parent, id.dirName(maxSocketPath-len(parent)-len("//")-len(StatusSocket))))
	}
	return dirs
}

// dirName returns the name of the state directory in a shared place. It has user, job, attempt, role and index as far
// as they fit into length bytes, and a hash of them and of the PID namespace, because containers may share the place.
func (id Identity) dirName(length int) string {
	parts := []string{id.Job, id.Attempt, id.Role, strconv.Itoa(id.Index), id.Space}
	hash := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	prefix, suffix := ownPrefix(os.Geteuid()), hex.EncodeToString(hash[:4])
	readable := strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("._-", r) {
			return r
		}
		return '_'
	}, strings.Join(slices.DeleteFunc(parts[:4], func(s string) bool { return s == "" || s == "-1" }), "-"))
	const mostReadable = 48 // a longer name makes the paths in variables hard to read
	readable = readable[:max(0, min(len(readable), mostReadable, length-len(prefix)-len("-")-len(suffix)))]
	return strings.TrimSuffix(prefix+readable, "-") + "-" + suffix
}

// ownPrefix returns the prefix of a user's state directories in shared places.
func ownPrefix(uid int) string { return "paiinit-" + strconv.Itoa(uid) + "-" }

// readIdentity reads the identity of the owner of a state directory.
func readIdentity(dir string) (Identity, error) {
	id := Identity{Index: -1, Rank: -1, Alias: "a paiinit", dir: dir}
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return id, err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, 64<<10)) // far more than any identity has
	if err != nil {
		return id, err
	}
	err = json.Unmarshal(b, &id)
	return id, err
}

// RunningError says that a paiinit is already running in this container.
type RunningError struct {
	Owner Identity
}

func (e *RunningError) Error() string {
	return fmt.Sprintf("paiinit is already running in this container: %v; nothing was started", e.Owner)
}

// CheckAlone returns a *RunningError if a running paiinit excludes this one. It checks all places and named before Open
// takes one: the first place may be free while the other paiinit uses the second.
func (id Identity) CheckAlone(named string) error {
	dirs := visibleDirs(named)
	if UnderPaiinit() {
		for _, dir := range dirs {
			if _, err := server(dir); errors.Is(err, os.ErrPermission) {
				return &RunningError{Owner: Identity{Alias: "a paiinit of another user", Rank: -1, dir: dir}}
			}
		}
	}
	for _, o := range live(dirs) {
		if id.excludes(o) {
			return &RunningError{Owner: o}
		}
	}
	return nil
}

// Beside returns another running paiinit of this container, in a usual place or at named; nil if there is none.
func (d *Dir) Beside(named string) *Identity {
	own, _ := readIdentity(d.Path)
	for _, o := range live(visibleDirs(named)) {
		if o.dir != d.Path && o.Space == own.Space {
			return &o
		}
	}
	return nil
}
