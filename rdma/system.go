package rdma

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// SystemLimits returns the limits of this process. CAP_IPC_LOCK is reported as the kernel grants it here; in a user
// namespace other than the host's, drivers do not accept it.
func SystemLimits() Limits {
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

// OpenNode opens a device node for reading and writing, as every verbs program does, and closes it again.
func OpenNode(path string) error {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("rdma: opening %s: %w", path, err)
	}
	_ = unix.Close(fd) // nothing was written
	return nil
}
