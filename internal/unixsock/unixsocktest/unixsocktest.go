// Package unixsocktest has what the tests of Unix sockets share.
package unixsocktest

import (
	"net"
	"os"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// ListenAs listens on a socket as another user: the kernel gives that user as the peer (unix(7), SO_PEERCRED).
func ListenAs(t *testing.T, uid int, path string) *net.UnixListener {
	t.Helper()
	type result struct {
		ln  *net.UnixListener
		err error
	}
	made := make(chan result)
	go func() {
		runtime.LockOSThread() // the thread ends with this goroutine
		const keep = ^uintptr(0)
		_, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(uid), keep)
		if errno != 0 {
			made <- result{nil, errno}
			return
		}
		ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
		made <- result{ln, err}
	}()
	r := <-made
	if r.err != nil {
		t.Fatal(r.err)
	}
	t.Cleanup(func() { _ = r.ln.Close() })
	if err := os.Chmod(path, 0o777); err != nil {
		t.Fatal(err)
	}
	return r.ln
}

// LimitFiles leaves the process n free file descriptors until restore is called or the test ends. Opening another one
// then fails with EMFILE.
func LimitFiles(t *testing.T, free int) (restore func()) {
	t.Helper()
	var usual unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &usual); err != nil {
		t.Fatal(err)
	}
	few := usual
	next, err := unix.Dup(0) // the lowest number that is free
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Close(next); err != nil {
		t.Fatal(err)
	}
	few.Cur = uint64(next + free)
	if free == 0 {
		few.Cur = 1 // a lower number that another goroutine releases meanwhile does not count; 0 is open
	}
	restore = sync.OnceFunc(func() { _ = unix.Prlimit(0, unix.RLIMIT_NOFILE, &usual, nil) })
	t.Cleanup(restore)
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &few, nil); err != nil {
		t.Fatal(err)
	}
	return restore
}
