// Package statedir is the directory in which a running paiinit leaves what launchers and tools read: host lists, the
// sockets of the commands that ask, and links that make this program the container's ssh.
//
// It hides where the directory lies (/run/paiinit, else a place that several users share, under a name of its own),
// how its owner is known (a lock that the kernel gives back, and the peer of a socket), what a full file system would
// break later, and what earlier starts have left. It refuses a directory that another user could have prepared, a
// path too long for a socket, and a second paiinit of the same job and rank in one container.
package statedir

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/internal/unixsock"
)

// Names in the directory.
const (
	AgentSocket     = "agent.sock"  // the remote shell asks here
	StatusSocket    = "status.sock" // the commands ask here; its server is the owner of the directory
	KeysSocket      = "keys.sock"   // logs other ssh clients in
	StatusFile      = "status.json"
	Hostfile        = "hostfile"       // "name slots=n"
	CountedHostfile = "hostfile.hydra" // "name:n"
	SSHConfig       = "ssh_config"
	KnownHosts      = "known_hosts"
	Bin             = "bin" // links to this program
	Temp            = "tmp" // for launchers that find no other place on this or another host

	lockName    = "lock"
	reserveName = "reserved"
)

// A Unix socket's path is at most this long (unix(7), sun_path).
const maxSocketPath = 107

// Config says which directory to open, and for whom.
type Config struct {
	Dir     string // the only directory to try; "" = the usual places
	Owner   Identity
	Program string   // path of the program to which the links in Bin lead
	Links   []string // their names
}

// Dir is an open state directory. Its owner holds a lock on the file `lock` until the owner has ended.
type Dir struct {
	Path    string
	Program string // Config.Program
	Agent   *net.UnixListener
	Status  *net.UnixListener

	lock *os.File
}

// Open takes the first place that this process can use. A *RunningError says that this container has a paiinit already;
// then nothing was touched.
func Open(ctx context.Context, cfg Config) (*Dir, error) {
	if err := cfg.Owner.CheckAlone(cfg.Dir); err != nil {
		return nil, err
	}
	places := cfg.Owner.places()
	if cfg.Dir != "" {
		places = []string{cfg.Dir}
	} else {
		defer removeDead(places)
	}
	var errs []error
	for _, place := range places {
		d := &Dir{Path: place, Program: cfg.Program}
		err := d.open(ctx, cfg)
		if err == nil {
			return d, nil
		}
		d.unlock()
		var taken *takenError
		if errors.As(err, &taken) && cfg.Owner.excludes(taken.owner) {
			return nil, &RunningError{Owner: taken.owner}
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// takenError says that a running paiinit uses this state directory.
type takenError struct{ owner Identity }

func (e *takenError) Error() string { return "in use by " + e.owner.String() }

func (d *Dir) open(ctx context.Context, cfg Config) error {
	if longest := d.File(StatusSocket); len(longest) > maxSocketPath {
		return fmt.Errorf("%s: longer than the %d bytes of a socket's path", longest, maxSocketPath)
	}
	if err := os.MkdirAll(d.Path, 0o755); err != nil {
		return err
	}
	info, err := os.Lstat(d.Path)
	if err != nil {
		return err
	}
	if err := checkOwner(d.Path, info); err != nil {
		return err
	}
	if err := d.takeLock(ctx, cfg.Owner); err != nil {
		return err
	}
	for _, sub := range []string{Bin, Temp} {
		if err := os.Mkdir(d.File(sub), 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	// Files of an earlier start name its hosts, and tell how that start ended.
	for _, name := range []string{StatusFile, Hostfile, CountedHostfile, SSHConfig, KnownHosts} {
		if err := removeFile(d.File(name)); err != nil {
			return err
		}
	}
	if err := d.reserve(cfg.Owner.Size); err != nil {
		return fmt.Errorf("%s: no room for the host lists: %w", d.Path, err)
	}
	for _, name := range cfg.Links {
		if err := replaceLink(cfg.Program, d.File(filepath.Join(Bin, name))); err != nil {
			return err
		}
	}
	if d.Agent, err = unixsock.Listen(d.File(AgentSocket)); err != nil {
		return err
	}
	if d.Status, err = unixsock.Listen(d.File(StatusSocket)); err != nil {
		_ = d.Agent.Close()
		return err
	}
	return nil
}

// checkOwner refuses a directory that another user could have prepared in a place where every user may write.
func checkOwner(name string, info fs.FileInfo) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !ok {
		return fmt.Errorf("%s: not a directory", name)
	}
	if int(st.Uid) != os.Geteuid() && st.Uid != 0 || info.Mode().Perm()&0o002 != 0 {
		return fmt.Errorf("%s: another user can write there", name)
	}
	return nil
}

// A paiinit that holds the lock and does not answer is just starting or ending.
const (
	lockTimeout  = 3 * time.Second
	lockInterval = 20 * time.Millisecond
)

// takeLock makes this process the owner of the directory until it ends, and writes its identity into the lock file. The
// lock of a paiinit that was killed is free. No child inherits it: the file is closed on exec.
func (d *Dir) takeLock(ctx context.Context, own Identity) error {
	for deadline := time.Now().Add(lockTimeout); ; {
		held, err := d.tryLock()
		switch {
		case err != nil:
			return fmt.Errorf("locking %s: %w", d.Path, err)
		case !held:
			_, dead := server(d.Path)
			if dead == nil || time.Now().After(deadline) {
				id, _ := readIdentity(d.Path)
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
			err = d.lock.Truncate(0)
		}
		if err == nil {
			_, err = d.lock.WriteAt(append(b, '\n'), 0)
		}
		if err != nil {
			return fmt.Errorf("writing %s: %w", d.lock.Name(), err)
		}
		return nil
	}
}

// tryLock reports whether this process holds the lock now.
func (d *Dir) tryLock() (bool, error) {
	for {
		f, err := os.OpenFile(d.File(lockName), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
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
			if _, dead := server(d.Path); dead == nil {
				_ = f.Close()
				return false, nil
			}
		}
		now, errNow := os.Lstat(d.File(lockName))
		locked, errLocked := f.Stat()
		if errNow == nil && errLocked == nil && os.SameFile(now, locked) {
			d.lock = f
			return true, nil
		}
		_ = f.Close() // removeDead was faster
		if err := errors.Join(errNow, errLocked); err != nil && !errors.Is(err, os.ErrNotExist) {
			return false, err
		}
		if err := os.MkdirAll(d.Path, 0o755); err != nil {
			return false, err
		}
	}
}

// noLocks says that a file system has no flock(2): Lustre without the option for it, some network file systems.
func noLocks(err error) bool {
	return errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOLCK)
}

func (d *Dir) unlock() {
	if d.lock != nil {
		_ = d.lock.Close()
		d.lock = nil
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
			d := &Dir{Path: filepath.Join(parent, e.Name())}
			info, err := os.Lstat(d.Path)
			if err != nil || checkOwner(d.Path, info) != nil || time.Since(info.ModTime()) < deadAge {
				continue
			}
			if held, err := d.tryLock(); held && err == nil {
				_ = os.RemoveAll(d.Path) // it only takes space
				d.unlock()
			}
		}
	}
}

// Room for the files that are written once all ranks are present, in bytes: paiinit must find a full file system before
// it waits for the ranks, not after.
const (
	reserveEach = 2 << 10 // per rank: host lists, ssh_config, known_hosts and status.json
	reserveMin  = 64 << 10
)

// reserve takes the room for files that are written later. A job of one rank writes them at once.
func (d *Dir) reserve(size int) error {
	if size == 1 {
		return nil
	}
	f, err := os.OpenFile(d.File(reserveName), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
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
		_ = os.Remove(d.File(reserveName))
	}
	return err
}

// FreeReserve gives back the room that was reserved for the files that the caller writes now.
func (d *Dir) FreeReserve() error { return removeFile(d.File(reserveName)) }

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

// File returns the path of a file of the directory.
func (d *Dir) File(name string) string { return filepath.Join(d.Path, name) }

// WriteFile replaces a file at once: readers see the old file or the new one.
func (d *Dir) WriteFile(name string, content []byte) error {
	tmp := d.File(name + ".new")
	if err := os.WriteFile(tmp, content, 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, d.File(name))
}

// Link makes link a symbolic link to a file of the directory: a link, so that a list that a killed paiinit has left
// differs from the user's own. It replaces only the link of a paiinit that has ended; what else is there is an
// fs.ErrExist. remove takes the link back; it is nil unless Link has made one where there was none.
func (d *Dir) Link(name, link string) (remove func(), err error) {
	target := d.File(name)
	there, err := os.Readlink(link)
	switch {
	case err == nil && there == target:
		return nil, nil
	case err == nil && filepath.Base(there) == name && !exists(filepath.Join(filepath.Dir(there), AgentSocket)):
		return nil, replaceLink(target, link)
	}
	madeDir := os.Mkdir(filepath.Dir(link), 0o755) == nil
	if err := os.Symlink(target, link); err != nil {
		return nil, err
	}
	return func() {
		if now, err := os.Readlink(link); err == nil && now == target {
			_ = os.Remove(link)
		}
		if madeDir {
			_ = os.Remove(filepath.Dir(link)) // if nothing else is in it
		}
	}, nil
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}

// Close removes what must not be used any more. The host lists and the last status stay, readable after the exit.
func (d *Dir) Close() {
	_, _ = d.Agent.Close(), d.Status.Close() // this removes them
	_ = d.FreeReserve()
	d.unlock()
}
