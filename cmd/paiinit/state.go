package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/hostfile"
	"github.com/paiinit/paiinit/launch"
)

const (
	socketName   = "agent.sock"
	questionName = "status.sock"
	lockName     = "lock"
	reserveName  = "reserved"
)

// A Unix socket's path is at most this long (unix(7), sun_path).
const maxSocketPath = 107

// state is the directory for what launchers and tools read: the host lists, the sockets of the agent and of the
// commands that ask, and a link that makes this program the container's ssh. The paiinit that owns it holds a lock on
// the file `lock` until it has ended.
type state struct {
	dir       string
	self      string // path of this program
	lock      *os.File
	agent     *net.UnixListener
	questions *net.UnixListener
}

// openState takes the first place that it can: dir if it is given. A *runningError says that this container has a
// paiinit already; then nothing was touched.
func openState(ctx context.Context, dir string, own identity, environ []string) (*state, error) {
	self, err := os.Executable()
	if err != nil { // without /proc
		cwd, errDir := os.Getwd()
		path, errLook := launch.Look(os.Args[0], environ, cwd)
		if errLook != nil || errDir != nil {
			return nil, fmt.Errorf("finding this program's own path: %w", errors.Join(err, errDir, errLook))
		}
		self = path
	}
	if err := own.alone(dir); err != nil {
		return nil, err
	}
	places := own.stateDirs()
	if dir != "" {
		places = []string{dir}
	} else {
		defer removeDead(places)
	}
	var errs []error
	for _, d := range places {
		s := &state{dir: d, self: self}
		err := s.open(ctx, own)
		if err == nil {
			return s, nil
		}
		s.unlock()
		var taken *takenError
		if errors.As(err, &taken) && own.excludes(taken.owner) {
			return nil, &runningError{owner: taken.owner}
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("no directory for the state can be used (--state-dir): %w", errors.Join(errs...))
}

// alone looks for a paiinit that excludes this one, in all places before one is taken: the first place may be free
// while the other one has the second.
func (id identity) alone(named string) error {
	dirs := visibleDirs(named)
	if underPaiinit() {
		for _, dir := range dirs {
			if _, err := owner(dir); errors.Is(err, os.ErrPermission) {
				return &runningError{owner: identity{Alias: "a paiinit of another user", Rank: -1, dir: dir}}
			}
		}
	}
	for _, o := range live(dirs) {
		if id.excludes(o) {
			return &runningError{owner: o}
		}
	}
	return nil
}

// beside returns another paiinit that runs in this container, if there is one.
func (s *state) beside(named string) *identity {
	own, _ := readIdentity(s.dir)
	for _, o := range live(visibleDirs(named)) {
		if o.dir != s.dir && o.Space == own.Space {
			return &o
		}
	}
	return nil
}

// takenError says that a paiinit runs with this state directory.
type takenError struct{ owner identity }

func (e *takenError) Error() string { return "in use by " + e.owner.String() }

func (s *state) open(ctx context.Context, own identity) error {
	if longest := s.path(questionName); len(longest) > maxSocketPath {
		return fmt.Errorf("%s: longer than the %d bytes of a socket's path", longest, maxSocketPath)
	}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return err
	}
	info, err := os.Lstat(s.dir)
	if err != nil {
		return err
	}
	if err := owned(s.dir, info); err != nil {
		return err
	}
	if err := s.takeLock(ctx, own); err != nil {
		return err
	}
	// tmp is for launchers that find no other place on this or another host
	for _, sub := range []string{"bin", "tmp"} {
		if err := os.Mkdir(s.path(sub), 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	// What an earlier start has left tells of its own hosts, and how that one ended.
	for _, name := range []string{"status.json", "hostfile", "hostfile.hydra", "ssh_config", "known_hosts"} {
		if err := removeFile(s.path(name)); err != nil {
			return err
		}
	}
	if err := s.reserve(own.Size); err != nil {
		return fmt.Errorf("%s: no room for the host lists: %w", s.dir, err)
	}
	for _, name := range append(launch.Fills(), "ssh") {
		if err := replaceLink(s.self, s.path("bin/"+name)); err != nil {
			return err
		}
	}
	if s.agent, err = s.socket(socketName); err != nil {
		return err
	}
	if s.questions, err = s.socket(questionName); err != nil {
		_ = s.agent.Close()
		return err
	}
	return nil
}

// A paiinit that holds the lock and does not answer is just starting or ending: for how long that is awaited, and how
// often it is looked.
const (
	lockPatience = 3 * time.Second
	lockInterval = 20 * time.Millisecond
)

// takeLock makes this process the owner of the directory, until it ends, and writes down who it is. The lock of a
// paiinit that was killed is free. No child inherits it: the file is closed on exec.
func (s *state) takeLock(ctx context.Context, own identity) error {
	for deadline := time.Now().Add(lockPatience); ; {
		held, err := s.tryLock()
		switch {
		case err != nil:
			return fmt.Errorf("locking %s: %w", s.dir, err)
		case !held:
			_, dead := owner(s.dir)
			if dead == nil || time.Now().After(deadline) {
				id, _ := readIdentity(s.dir)
				return &takenError{id}
			}
			select { // flock(2) has no timeout
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(lockInterval):
			}
			continue
		}
		b, err := json.Marshal(own)
		if err == nil {
			err = s.lock.Truncate(0)
		}
		if err == nil {
			_, err = s.lock.WriteAt(append(b, '\n'), 0)
		}
		if err != nil {
			return fmt.Errorf("writing %s: %w", s.lock.Name(), err)
		}
		return nil
	}
}

// tryLock reports whether the lock is held by this process now.
func (s *state) tryLock() (bool, error) {
	for {
		f, err := os.OpenFile(s.path(lockName), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
		if err != nil {
			return false, err
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err != nil && !noLocks(err) {
			_ = f.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return false, nil
			}
			return false, err
		}
		if err != nil {
			if _, dead := owner(s.dir); dead == nil {
				_ = f.Close()
				return false, nil
			}
		}
		now, errNow := os.Lstat(s.path(lockName))
		locked, errLocked := f.Stat()
		if errNow == nil && errLocked == nil && os.SameFile(now, locked) {
			s.lock = f
			return true, nil
		}
		_ = f.Close() // removeDead was faster
		if err := errors.Join(errNow, errLocked); err != nil && !errors.Is(err, os.ErrNotExist) {
			return false, err
		}
		if err := os.MkdirAll(s.dir, 0o755); err != nil {
			return false, err
		}
	}
}

// noLocks says that a file system has no flock(2): Lustre without the option for it, some network file systems.
func noLocks(err error) bool {
	return errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOLCK)
}

func (s *state) unlock() {
	if s.lock != nil {
		_ = s.lock.Close()
		s.lock = nil
	}
}

// deadAge is how long the state directory of a job that has ended stays in a shared place.
const deadAge = 24 * time.Hour

// removeDead removes old state directories of this user beside the places, whose owner has ended.
func removeDead(places []string) {
	for _, place := range places {
		parent := filepath.Dir(place)
		if !slices.Contains(sharedPlaces(), parent) {
			continue
		}
		entries, err := os.ReadDir(parent)
		if err != nil {
			continue
		}
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), ownPrefix(os.Geteuid())) {
				continue
			}
			s := &state{dir: filepath.Join(parent, e.Name())}
			info, err := os.Lstat(s.dir)
			if err != nil || owned(s.dir, info) != nil || time.Since(info.ModTime()) < deadAge {
				continue
			}
			if held, err := s.tryLock(); held && err == nil {
				_ = os.RemoveAll(s.dir) // it only takes space
				s.unlock()
			}
		}
	}
}

// Room for the files that are written once all ranks are present, in bytes: a full file system must be found before the
// wait, not after it.
const (
	reserveEach = 2 << 10 // per rank: host lists, ssh_config, known_hosts and status.json
	reserveMin  = 64 << 10
)

// reserve takes the room for files that are written later. A job of one rank writes them at once.
func (s *state) reserve(size int) error {
	if size == 1 {
		return nil
	}
	f, err := os.OpenFile(s.path(reserveName), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	n := reserveMin + reserveEach*max(size, 0)
	err = unix.Fallocate(int(f.Fd()), 0, 0, int64(n))
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		if _, err = f.Write(make([]byte, n)); err == nil {
			err = f.Sync()
		}
	}
	err = errors.Join(err, f.Close())
	if err != nil {
		_ = os.Remove(s.path(reserveName))
	}
	return err
}

// socket listens where only this user, and root, can connect: the agent runs commands on all hosts of the job.
func (s *state) socket(name string) (*net.UnixListener, error) {
	if err := removeFile(s.path(name)); err != nil {
		return nil, err
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.path(name), Net: "unix"})
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(s.path(name), 0o600); err != nil {
		_ = ln.Close()
		return nil, err
	}
	return ln, nil
}

// removeFile removes a file that may not exist. os.Remove would try to remove a directory then: one call more for each
// file of every start.
func removeFile(name string) error {
	if err := unix.Unlink(name); err != nil && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "remove", Path: name, Err: err}
	}
	return nil
}

func replaceLink(target, link string) error {
	if old, err := os.Readlink(link); err == nil && old == target {
		return nil
	}
	tmp := link + ".new"
	if err := removeFile(tmp); err != nil {
		return err
	}
	if err := os.Symlink(target, tmp); err != nil {
		return err
	}
	return os.Rename(tmp, link)
}

func (s *state) path(name string) string { return filepath.Join(s.dir, name) }

func (s *state) writeHostfiles(hosts []hostfile.Host) error {
	if err := removeFile(s.path(reserveName)); err != nil {
		return err
	}
	for name, dialect := range map[string]hostfile.Dialect{"hostfile": hostfile.OpenMPI, "hostfile.hydra": hostfile.Hydra} {
		var b bytes.Buffer
		if err := hostfile.Write(&b, dialect, hosts); err != nil {
			return err
		}
		if err := s.writeFile(name, b.Bytes()); err != nil {
			return fmt.Errorf("writing the host list: %w", err)
		}
	}
	return nil
}

// writeFile replaces a file at once: whoever reads it sees the old one or the new one.
func (s *state) writeFile(name string, content []byte) error {
	tmp := s.path(name + ".new")
	if err := os.WriteFile(tmp, content, 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, s.path(name))
}

// close removes what must not be used any more; the host lists and the last status stay for whoever looks.
func (s *state) close() {
	_, _ = s.agent.Close(), s.questions.Close() // this removes them
	_ = removeFile(s.path(reserveName))
	s.unlock()
}
