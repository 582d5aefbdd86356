package rdma

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// System returns the Config of this container.
func System() Config {
	return Config{
		Root: os.DirFS("/"), Limits: systemLimits(),
		read: readAttribute, open: openNode, verbs: queryVerbs, netlink: queryNetlink, peerMemory: readPeerMemory,
	}
}

// systemLimits returns the limits of this process. In a user namespace other than the host's, drivers ignore
// CAP_IPC_LOCK even where the process has it.
func systemLimits() Limits {
	var l Limits
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r); err == nil {
		l.Memlock = int64(min(r.Cur, 1<<63-1))
		if r.Cur == unix.RLIM_INFINITY {
			l.Memlock = -1
		}
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err == nil {
		l.IPCLock = data[0].Effective&(1<<unix.CAP_IPC_LOCK) != 0
	}
	return l
}

// TreeLimits reads the limits from proc/self/limits and proc/self/status of a captured tree. Without these files there
// is no limit.
func TreeLimits(root fs.FS) Limits {
	l := Limits{Memlock: -1}
	if n, err := strconv.ParseInt(firstField(root, "proc/self/limits", "Max locked memory"), 10, 64); err == nil {
		l.Memlock = n
	}
	caps, err := strconv.ParseUint(firstField(root, "proc/self/status", "CapEff:"), 16, 64)
	l.IPCLock = err == nil && caps&(1<<unix.CAP_IPC_LOCK) != 0
	return l
}

// firstField returns what follows prefix in the line of a file that begins with it, up to the next blank.
func firstField(root fs.FS, file, prefix string) string {
	text, _ := fs.ReadFile(root, file)
	for line := range strings.Lines(string(text)) {
		rest, ok := strings.CutPrefix(line, prefix)
		if fields := strings.Fields(rest); ok && len(fields) > 0 {
			return fields[0]
		}
	}
	return ""
}

// readAttribute reads a file with three system calls where package os makes nine: a machine's GID tables can have
// thousands of entries, each in up to three files. Some drivers return EAGAIN, on which package os would wait forever.
func readAttribute(path string, buf []byte) (n int, err error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	for errors.Is(err, unix.EINTR) {
		fd, err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return 0, err // not wrapped: most attributes are missing because the driver does not have them
	}
	n, err = unix.Read(fd, buf)
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Read(fd, buf)
	}
	_ = unix.Close(fd) // nothing was written
	return max(n, 0), err
}

// openNode opens a device node for reading and writing, as every verbs program does, and closes it again.
func openNode(path string) error {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening %s: %w", path, err)
	}
	_ = unix.Close(fd) // nothing was written
	return nil
}

// readPeerMemory tries process_vm_readv(2) on the parent, which has the same rights in a container, and then on a
// child: where Yama restricts reading to descendants, the ranks of one host permit it to each other (PR_SET_PTRACER).
// The error is EPERM where a seccomp filter or Yama forbids it.
//
// The child executes this program again: a fork of a process that is not dumpable (PR_SET_DUMPABLE), as paiinit's are,
// is not dumpable either.
func readPeerMemory() error {
	if err := readMemory(os.Getppid()); err == nil {
		return nil
	}
	return readChild()
}

func readChild() error {
	for range 11 {
		child, err := syscall.ForkExec("/proc/self/exe", []string{"paiinit", "version"}, &syscall.ProcAttr{})
		if err != nil {
			return fmt.Errorf("starting a child: %w", err)
		}
		// A stopped child has executed the program and has memory of its own. Before, it may share this process's
		// memory, which is always readable.
		_ = unix.Kill(child, unix.SIGSTOP)
		if !reap(child, unix.WUNTRACED).Stopped() {
			continue // it ended before the signal arrived
		}
		err = readMemory(child)
		_ = unix.Kill(child, unix.SIGKILL)
		reap(child, 0)
		if err != nil {
			return fmt.Errorf("reading a child's memory: %w", err)
		}
		return nil
	}
	return fmt.Errorf("stopping a child: %w", unix.ESRCH)
}

// reap waits for a child to end, or, with WUNTRACED, to stop.
func reap(child, options int) (status unix.WaitStatus) {
	for {
		if _, err := unix.Wait4(child, &status, options, nil); !errors.Is(err, unix.EINTR) {
			return status
		}
	}
}

// readMemory reads one byte of a process, at an address that this program has mapped.
func readMemory(pid int) error {
	var to [1]byte
	local := []unix.Iovec{{Base: &to[0]}}
	local[0].SetLen(len(to))
	_, err := unix.ProcessVMReadv(pid, local,
		[]unix.RemoteIovec{{Base: uintptr(unsafe.Pointer(&reasonTexts)), Len: len(to)}}, 0)
	if errors.Is(err, unix.EFAULT) {
		return nil // the process may be read, but has nothing mapped there
	}
	return err
}
