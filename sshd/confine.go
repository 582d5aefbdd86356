package sshd

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// hiding knows what an SFTP client must not reach: absolute paths without symbolic links, with all that is below them.
type hiding []string

// newHiding follows the symbolic links of paths, and adds the other places where the kernel has mounted the same files.
func newHiding(paths []string) hiding {
	var h hiding
	for _, p := range paths {
		if p != "" {
			h = append(h, resolved(p))
		}
	}
	text, _ := os.ReadFile("/proc/self/mountinfo") // without /proc, the places are not known
	return h.mountedToo(readMounts(string(text)))
}

// mount is a mounted file system, or a part of it.
type mount struct{ device, root, point, kind string }

// readMounts reads proc_pid_mountinfo(5): "ID PARENT DEVICE ROOT POINT OPTIONS [FIELD...] - TYPE SOURCE OPTIONS".
func readMounts(mountinfo string) (mounts []*mount) {
	for _, line := range strings.Split(mountinfo, "\n") {
		words := strings.Fields(line)
		if dash := slices.Index(words, "-"); dash >= 6 && dash+1 < len(words) {
			mounts = append(mounts, &mount{words[2], unescaped(words[3]), unescaped(words[4]), words[dash+1]})
		}
	}
	return mounts
}

// unescaped undoes the kernel's octal numbers for blank, tab, newline and backslash.
func unescaped(s string) string {
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c == '\\' && i+3 < len(s) {
			c = s[i+1]<<6 | s[i+2]&7<<3 | s[i+3]&7
			i += 3
		}
		b = append(b, c)
	}
	return string(b)
}

// mountedToo adds to what is hidden the other places of the same files, and each proc, sysfs and devices file system:
// some containers get those of the machine.
func (h hiding) mountedToo(mounts []*mount) hiding {
	all := h
	for _, m := range mounts {
		switch m.kind {
		case "proc", "sysfs", "devtmpfs", "devpts":
			all = append(all, m.point)
		}
	}
	for _, p := range h {
		at := &mount{} // of p: the deepest, and the last where several cover each other
		for _, m := range mounts {
			if within(p, m.point) && len(m.point) >= len(at.point) {
				at = m
			}
		}
		inside := filepath.Join(at.root, strings.TrimPrefix(p, at.point))
		for _, m := range mounts {
			switch {
			case m.device != at.device || m == at:
			case within(inside, m.root):
				all = append(all, filepath.Join(m.point, strings.TrimPrefix(inside, m.root)))
			case within(m.root, inside):
				all = append(all, m.point)
			}
		}
	}
	return all
}

// within reports whether a clean path is dir, or lies below it.
func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// resolved follows the symbolic links of an absolute path, as far as it exists.
func resolved(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	parent, name := filepath.Split(filepath.Clean(path))
	if name == "" {
		return path
	}
	return filepath.Join(resolved(parent), name)
}

// hides reports whether a path without symbolic links must not be reached.
func (h hiding) hides(path string) bool {
	for _, hidden := range h {
		if within(path, hidden) {
			return true
		}
	}
	return false
}

// landlockVersion is the kernel's version of Landlock's interface (Documentation/userspace-api/landlock.rst), 0 where
// it has none, or does not let this process use it.
func landlockVersion() int {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(version)
}

const (
	fileRights = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE |
		unix.LANDLOCK_ACCESS_FS_TRUNCATE
	dirRights = fileRights | unix.LANDLOCK_ACCESS_FS_READ_DIR |
		unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE | unix.LANDLOCK_ACCESS_FS_MAKE_DIR |
		unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_MAKE_SYM | unix.LANDLOCK_ACCESS_FS_REFER
)

// ruleset is one of Landlock's, which allows what it has rules for. A rule holds for everything below a directory, so
// there is none for a directory with something hidden in it: what is in there is allowed one by one. The kernel finds
// the rule of a directory by its inode, whichever path leads there.
type ruleset struct {
	fd            int
	handled       uint64  // the rights that the kernel knows: all others cannot be taken away
	hidden, above []inode // what is hidden, and the directories that lead there
}

type inode struct{ device, number uint64 }

// look adds the inode of a path, if there is one.
func look(list []inode, path string) []inode {
	var st unix.Stat_t
	if unix.Stat(path, &st) == nil {
		list = append(list, inode{uint64(st.Dev), st.Ino})
	}
	return list
}

// confine takes from this process, for good, the access to what is hidden. It is false where the kernel has no
// Landlock.
func (h hiding) confine() (bool, error) {
	version := landlockVersion()
	if version == 0 {
		return false, nil
	}
	// The rights of version 1 are the first 13 bits.
	r := ruleset{handled: unix.LANDLOCK_ACCESS_FS_REFER - 1}
	for _, path := range h {
		r.hidden = look(r.hidden, path)
		for len(path) > 1 {
			path = filepath.Dir(path)
			r.above = look(r.above, path)
		}
	}
	for i, right := range []uint64{
		unix.LANDLOCK_ACCESS_FS_REFER, unix.LANDLOCK_ACCESS_FS_TRUNCATE, 0, unix.LANDLOCK_ACCESS_FS_IOCTL_DEV,
	} {
		if version >= 2+i {
			r.handled |= right
		}
	}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&r.handled)),
		unsafe.Sizeof(r.handled), 0)
	if errno != 0 {
		return false, fmt.Errorf("making a Landlock ruleset: %w", errno)
	}
	r.fd = int(fd)
	defer func() { _ = unix.Close(r.fd) }()
	r.allow(unix.AT_FDCWD, "/")
	// A restriction holds for its thread and the threads started from it, and the runtime has started some already.
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0); errno != 0 {
		return false, fmt.Errorf("giving up new privileges: %w", errno)
	}
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0); errno != 0 {
		return false, fmt.Errorf("restricting this process by Landlock: %w", errno)
	}
	return true, nil
}

// allow allows a path and what is below it, but not what is hidden. What cannot be opened or listed is not allowed.
func (r *ruleset) allow(dir int, name string) {
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return
	}
	in := inode{uint64(st.Dev), st.Ino}
	rights := uint64(fileRights)
	switch {
	case st.Mode&unix.S_IFMT == unix.S_IFLNK || slices.Contains(r.hidden, in): // a link's target has its own path
		return
	case slices.Contains(r.above, in):
		// This holds for what is hidden, too: stat(2), which is never denied, tells as much as names do.
		rights = unix.LANDLOCK_ACCESS_FS_READ_DIR
		for _, name := range namesIn(fd) {
			r.allow(fd, name)
		}
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		rights = dirRights
	}
	rule := unix.LandlockPathBeneathAttr{Allowed_access: rights & r.handled, Parent_fd: int32(fd)}
	_, _, _ = unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(r.fd), unix.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&rule)), 0, 0, 0)
}

// namesIn returns the names in a directory that was opened by O_PATH.
func namesIn(dir int) []string {
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), ".")
	defer func() { _ = f.Close() }()
	names, _ := f.Readdirnames(-1)
	return names
}

// filter passes on what an SFTP client sends, and spoils the requests for hidden paths that the kernel does not refuse:
// with Landlock requests that only look, or change mode, owner and times; without it all, as well as looking at a path
// before it is used can do that (a symbolic link may be changed in between).
type filter struct {
	hiding
	in       io.Reader
	dir      string // where relative paths begin
	confined bool   // by Landlock
	head     []byte // to be passed on
	left     int    // bytes of the packet after head, which are passed on as they come
}

func (f *filter) Read(p []byte) (int, error) {
	if len(f.head) == 0 && f.left == 0 {
		if err := f.next(); err != nil {
			return 0, err
		}
	}
	if len(f.head) > 0 {
		n := copy(p, f.head)
		f.head = f.head[n:]
		return n, nil
	}
	n, err := f.in.Read(p[:min(len(p), f.left)])
	f.left -= n
	return n, err
}

// maxPathPacket is more than a request with two paths has, in bytes. A longer one is passed on, and refused by its
// paths: PATH_MAX is 4096.
const maxPathPacket = 32 << 10

// next reads the head of a packet, and all of one with paths (draft-ietf-secsh-filexfer-02, 3 and 6): the length in
// four bytes, the type, the number of the request in four bytes, and strings.
func (f *filter) next() error {
	f.head = make([]byte, 4)
	if _, err := io.ReadFull(f.in, f.head); err != nil {
		return err
	}
	size := int(binary.BigEndian.Uint32(f.head))
	if size == 0 {
		return nil
	}
	f.head = append(f.head, 0)
	if _, err := io.ReadFull(f.in, f.head[4:]); err != nil {
		return err
	}
	first, n := f.pathsOf(f.head[4])
	f.left = size - 1
	if n == 0 || f.left > maxPathPacket {
		return nil
	}
	f.head = append(f.head, make([]byte, f.left)...)
	if _, err := io.ReadFull(f.in, f.head[5:]); err != nil {
		return err
	}
	f.left = 0
	f.spoil(f.head[min(len(f.head), 9):], first, n)
	return nil
}

const packetOpen = 3 // also of a directory: its handle serves to list it, and to change its mode

// pathsOf says which strings of a packet are paths to be looked at: n from first on.
func (f *filter) pathsOf(kind byte) (first, n int) {
	switch kind {
	case 7, 9, 11, 17, 19: // LSTAT, SETSTAT, OPENDIR, STAT, READLINK
		return 0, 1
	case packetOpen:
		return 0, 1
	}
	if f.confined {
		return 0, 0
	}
	switch kind {
	case 13, 14, 15: // REMOVE, MKDIR, RMDIR
		return 0, 1
	case 18, 20: // RENAME, SYMLINK
		return 0, 2
	case 200: // EXTENDED: its name, and paths
		return 1, 2
	}
	return 0, 0
}

// spoil replaces hidden paths by zeros: the call that the server makes then fails.
func (f *filter) spoil(b []byte, first, n int) {
	for i := 0; i < first+n && len(b) >= 4; i++ {
		size := int(binary.BigEndian.Uint32(b))
		b = b[4:]
		if size > len(b) {
			return // the server refuses the packet
		}
		path := string(b[:size])
		if !filepath.IsAbs(path) {
			path = filepath.Join(f.dir, path)
		}
		// The links in /proc lead out of it: neither what they say nor their target is for the client.
		hidden := i >= first && (f.hides(filepath.Clean(path)) || f.hides(resolved(path)))
		if hidden && f.confined && f.head[4] == packetOpen { // Landlock refuses files, and says so to the client
			info, err := os.Stat(path)
			hidden = err == nil && info.IsDir()
		}
		if hidden {
			clear(b[:size])
		}
		b = b[size:]
	}
}
