package inspect

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Here returns a source of this container, without a command. network is the interface to rank 0, "" if it is unknown.
func Here(environ []string, network string) Source {
	return Source{
		Files: os.DirFS("/"), Environ: environ, GPUs: -1,
		SharedMemory: func() (uint64, bool) {
			var fs unix.Statfs_t
			err := unix.Statfs("/dev/shm", &fs)
			return fs.Blocks * uint64(fs.Bsize), err == nil
		},
		LockedMemory: func() (uint64, bool) {
			var l unix.Rlimit
			err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l)
			return l.Cur, err == nil
		},
		MTU: func() (int, bool) { return mtu(network) },
		Kernel: func() (string, bool) {
			var u unix.Utsname
			err := unix.Uname(&u)
			return unix.ByteSliceToString(u.Release[:]), err == nil
		},
	}
}

// mtu asks the kernel instead of /sys, which may show the interfaces of another network namespace.
func mtu(network string) (int, bool) {
	request, err := unix.NewIfreq(strings.TrimSpace(network))
	if err != nil {
		return 0, false
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, false
	}
	defer func() { _ = unix.Close(fd) }()
	err = unix.IoctlIfreq(fd, unix.SIOCGIFMTU, request)
	return int(request.Uint32()), err == nil && network != ""
}
