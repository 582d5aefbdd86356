// Package statedir manages the directory that a running paiinit shares with launchers and tools: host lists, the
// sockets for paiinit's other commands, and links that make this program the container's ssh.
//
// It hides where the directory is (/run/paiinit, or a unique name in a place that several users share), how its owner
// is found (by a lock that the kernel releases, and by the peer of a socket), how it reserves space so that a full file
// system is detected early, and how it removes the remains of earlier starts. It refuses a directory that another user
// could have prepared, a path that is too long for a socket, and a second paiinit of the same job and rank in one
// container.
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
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/internal/unixsock"
)

// Names in the directory.
const (
	AgentSocket     = "agent.sock"  // for the remote shell
	StatusSocket    = "status.sock" // for the commands that ask; its server is the owner of the directory
	KeysSocket      = "keys.sock"   // the key agent for other ssh clients
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

// maxSocketPath is the longest path of a Unix socket (unix(7), sun_path).
const maxSocketPath = 107

// Config selects the directory to open and its contents.
type Config struct {
	Dir     string // the only directory to try; "" = the usual places
	Owner   Identity
	Program string   // path of the program that the links in Bin point to
	Links   []string // the names of the links
}

// Dir is an open state directory. Its owner holds a lock on the file `lock` until the owner has ended.
type Dir struct {
	Path    string
	Program string // Config.Program
	Agent   *net.UnixListener
	Status  *net.UnixListener

	lock *os.File
}

// Open opens the directory in the first place that this process can use. It returns a *RunningError, and changes
// nothing, if a paiinit is already running in this container.
func Open(ctx context.Context, cfg Config) (*Dir, error) {
	if err := cfg.Owner.CheckAlone(cfg.Dir); err != nil {
		return nil, err
	}
	places := cfg.Owner.places()
	if cfg.Dir != "" {
		places = []string{cfg.Dir}
	} else {
		defer removeDead()
	}
	var errs []error
	for _, place := range places {
		d := &Dir{Path: place, Program: cfg.Program}
		err := d.open(ctx, cfg)
		if err == nil {
			return d, nil
		}
		d.unlock()
		if taken, ok := errors.AsType[*takenError](err); ok && cfg.Owner.excludes(taken.owner) {
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
		return fmt.Errorf("%s: the path of a socket has at most %d bytes", longest, maxSocketPath)
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
	// The files of an earlier start name its hosts and show how it ended.
	for _, name := range []string{StatusFile, Hostfile, CountedHostfile, SSHConfig, KnownHosts} {
		if err := removeFile(d.File(name)); err != nil {
			return err
		}
	}
	if err := d.Reserve(cfg.Owner.Size); err != nil {
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

// The limits of the wait for a paiinit that holds the lock and does not answer: it is just starting or ending.
const (
	lockTimeout  = 3 * time.Second
	lockInterval = 20 * time.Millisecond
)

// takeLock makes this process the owner of the directory until the process ends, and writes its identity into the lock
// file. The kernel releases the lock of a killed paiinit. Children do not inherit it, because the file is
// close-on-exec.
func (d *Dir) takeLock(ctx context.Context, own Identity) error {
	for deadline := time.Now().Add(lockTimeout); ; {
		held, err := d.tryLock()
		if err != nil {
			return fmt.Errorf("locking %s: %w", d.Path, err)
		}
		if held {
			break
		}
		if _, dead := server(d.Path); dead == nil || time.Now().After(deadline) {
			id, _ := readIdentity(d.Path)
			return &takenError{id}
		}
		select { // flock(2) has no timeout
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lockInterval):
		}
	}
	err := d.lock.Truncate(0)
	if err == nil {
		err = json.NewEncoder(d.lock).Encode(own)
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", d.lock.Name(), err)
	}
	return nil
}

// tryLock reports whether this process holds the lock now.
func (d *Dir) tryLock() (bool, error) {
	for {
		f, err := os.OpenFile(d.File(lockName), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
		if err != nil {
			return false, err
		}
		held := true
		switch err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
		case errors.Is(err, unix.EWOULDBLOCK):
			held, err = false, nil
		case noLocks(err):
			_, dead := server(d.Path)
			held, err = dead != nil, nil
		}
		if !held || err != nil {
			_ = f.Close()
			return false, err
		}
		now, errNow := os.Lstat(d.File(lockName))
		locked, errLocked := f.Stat()
		if os.SameFile(now, locked) {
			d.lock = f
			return true, nil
		}
		_ = f.Close() // removeDead has removed the file
		if err := errors.Join(errNow, errLocked); err != nil && !errors.Is(err, os.ErrNotExist) {
			return false, err
		}
		if err := os.MkdirAll(d.Path, 0o755); err != nil {
			return false, err
		}
	}
}

// noLocks reports that a file system has no flock(2): Lustre without the option for it, some network file systems.
func noLocks(err error) bool {
	return errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOLCK)
}

func (d *Dir) unlock() { _ = d.lock.Close() } // also if it holds no lock

// deadAge is how long the state directory of an ended job stays in a shared place.
const deadAge = 24 * time.Hour

// removeDead removes this user's old state directories in the shared places if their owners have ended.
func removeDead() {
	for _, dir := range sharedDirs(ownPrefix(os.Geteuid())) {
		info, err := os.Lstat(dir)
		if err != nil || checkOwner(dir, info) != nil || time.Since(info.ModTime()) < deadAge {
			continue
		}
		d := &Dir{Path: dir}
		if held, err := d.tryLock(); held && err == nil {
			_ = os.RemoveAll(dir) // a failure only wastes space
			d.unlock()
		}
	}
}

// The space in bytes to reserve for the files that are written once all ranks are present: paiinit must detect a full
// file system before it waits for the ranks, not after.
const (
	reserveEach = 2 << 10 // per rank: host lists, ssh_config, known_hosts and status.json
	reserveMin  = 64 << 10
)

// Reserve reserves space for the files that are written later. A job of one rank writes them at once.
func (d *Dir) Reserve(size int) error {
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

// FreeReserve releases the reserved space, so that the caller can write the files.
func (d *Dir) FreeReserve() error { return removeFile(d.File(reserveName)) }

// removeFile removes a file that may not exist. os.Remove would then try rmdir as well, which costs a system call for
// each file at every start.
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

// WriteFile replaces a file atomically: readers see the old content or the new one.
func (d *Dir) WriteFile(name string, content []byte) error {
	tmp := d.File(name + ".new")
	if err := os.WriteFile(tmp, content, 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, d.File(name))
}

// Link creates link as a symbolic link to a file of the directory. It is a link, and not a file, so that the remains of
// a killed paiinit differ from the user's own file. Link replaces only the link of a paiinit that has ended, and
// returns fs.ErrExist for anything else. remove removes the link; it is nil unless Link has created a new one.
func (d *Dir) Link(name, link string) (remove func(), err error) {
	target := d.File(name)
	there, err := os.Readlink(link)
	if err == nil && there == target {
		return nil, nil
	}
	if err == nil && filepath.Base(there) == name {
		if _, err := os.Lstat(filepath.Join(filepath.Dir(there), AgentSocket)); err != nil {
			return nil, replaceLink(target, link)
		}
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
			_ = os.Remove(filepath.Dir(link)) // fails if the directory has other files
		}
	}, nil
}

// Close removes the sockets and the links. The host lists and the last status stay readable after the exit.
func (d *Dir) Close() {
	_, _ = d.Agent.Close(), d.Status.Close() // this removes them
	_ = d.FreeReserve()
	d.unlock()
}
