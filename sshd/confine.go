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

// hiding is what an SFTP client must not reach: absolute paths without symbolic links, and everything below them.
type hiding []string

// newHiding resolves the symbolic links of paths and adds the other places where the same files are mounted.
func newHiding(paths []string) hiding {
	var h hiding
	for _, p := range paths {
		if p != "" {
			h = append(h, resolved(p))
		}
	}
	text, _ := os.ReadFile("/proc/self/mountinfo") // without /proc, these places are unknown
	return h.mountedToo(readMounts(string(text)))
}

// mount is a mounted file system or a part of it.
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

// unescaped decodes the kernel's octal numbers for blank, tab, newline and backslash.
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

// mountedToo adds the other places of the hidden files, and each proc, sysfs and devices file system: some containers
// get the machine's.
func (h hiding) mountedToo(mounts []*mount) hiding {
	all := h
	for _, m := range mounts {
		switch m.kind {
		case "proc", "sysfs", "devtmpfs", "devpts":
			all = append(all, m.point)
		}
	}
	for _, p := range h {
		at := &mount{} // of p: the deepest, and of several at one place the last
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

// within reports whether a clean path is dir or below it.
func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// resolved resolves the symbolic links of an absolute path, as far as it exists.
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

// hides reports whether a path without symbolic links is hidden.
func (h hiding) hides(path string) bool {
	return slices.ContainsFunc(h, func(hidden string) bool { return within(path, hidden) })
}

// landlockVersion returns the kernel's version of Landlock (Documentation/userspace-api/landlock.rst); 0 if it has none
// or forbids it to this process.
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

// ruleset is a Landlock ruleset, which allows what it has rules for. A rule allows everything below a directory, so a
// directory above a hidden path gets no such rule: its other entries are allowed one by one. The kernel finds the rule
// of a directory by its inode, through any path.
type ruleset struct {
	fd            int
	handled       uint64  // the rights that the kernel knows and can take away
	hidden, above []inode // hidden files, and the directories above them
}

type inode struct{ device, number uint64 }

// appendInode appends the inode of a path, if it exists.
func appendInode(list []inode, path string) []inode {
	var st unix.Stat_t
	if unix.Stat(path, &st) == nil {
		list = append(list, inode{uint64(st.Dev), st.Ino})
	}
	return list
}

// confine permanently removes this process's access to what is hidden. It returns false if the kernel has no Landlock.
func (h hiding) confine() (bool, error) {
	version := landlockVersion()
	if version == 0 {
		return false, nil
	}
	// The rights of version 1 are the first 13 bits.
	r := ruleset{handled: unix.LANDLOCK_ACCESS_FS_REFER - 1}
	for _, path := range h {
		r.hidden = appendInode(r.hidden, path)
		for len(path) > 1 {
			path = filepath.Dir(path)
			r.above = appendInode(r.above, path)
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
	// A restriction holds for one thread and its new threads, and the runtime has already started some.
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0); errno != 0 {
		return false, fmt.Errorf("giving up new privileges: %w", errno)
	}
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0); errno != 0 {
		return false, fmt.Errorf("restricting this process by Landlock: %w", errno)
	}
	return true, nil
}

// allow allows a path and what is below it, except what is hidden. It skips what cannot be opened or listed.
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
		// Listing shows hidden names as well: so does stat(2), which Landlock never denies.
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

// namesIn returns the names in a directory that was opened with O_PATH.
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

// filter passes on what an SFTP client sends, and makes requests for hidden paths fail. Landlock does not restrict
// requests that only look, or change mode, owner and times, so with it filter handles these. Without Landlock filter
// handles all requests, but a symbolic link may change between the check and the use.
type filter struct {
	hiding
	in       io.Reader
	dir      string // the directory of relative paths
	confined bool   // by Landlock
	head     []byte // still to pass on
	left     int    // bytes of the packet after head, passed on unchanged
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

// maxPathPacket is larger than any valid request with two paths, in bytes: PATH_MAX is 4096. Larger ones are passed on
// and fail.
const maxPathPacket = 32 << 10

// next reads the head of a packet, or all of it if it has paths (draft-ietf-secsh-filexfer-02, 3 and 6): the length in
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

const packetOpen = 3 // also opens directories: the handle can list it and change its mode

// pathsOf returns which strings of a packet are paths to check: n from first on.
func (f *filter) pathsOf(kind byte) (first, n int) {
	switch kind {
	case packetOpen, 7, 9, 11, 17, 19: // OPEN, LSTAT, SETSTAT, OPENDIR, STAT, READLINK
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

// spoil replaces hidden paths by zeros, so that the server's system call fails.
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
		// Links in /proc lead out of it: both the link and its target are checked.
		hidden := i >= first && (f.hides(filepath.Clean(path)) || f.hides(resolved(path)))
		if hidden && f.confined && f.head[4] == packetOpen { // Landlock refuses files with the right error
			info, err := os.Stat(path)
			hidden = err == nil && info.IsDir()
		}
		if hidden {
			clear(b[:size])
		}
		b = b[size:]
	}
}
