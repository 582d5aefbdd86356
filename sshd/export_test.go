package sshd

import (
	"io"
	"time"
)

// SetLogin changes the login deadline.
func (s *Server) SetLogin(d time.Duration) { s.limits.login = d }

// Login returns the login deadline.
func (s *Server) Login() time.Duration { return s.limits.login }

// SetHandshakes changes how many handshakes run at once, and for how long each keeps its place.
func (s *Server) SetHandshakes(n int, turn time.Duration) {
	s.limits.handshakes, s.limits.turn = n, turn
	s.admission = newAdmission(&s.limits)
}

// SetPending changes how many connections without a login there may be from one address, and from everywhere.
func (s *Server) SetPending(perSource, all int) {
	s.limits.perSource, s.limits.pending = perSource, all
}

// SetKeepalive changes the interval.
func (s *Server) SetKeepalive(d time.Duration) { s.limits.keepalive = d }

// SetDrain changes how long pour waits for output that another process than the command holds open.
func (s *Server) SetDrain(idle, total time.Duration) {
	s.limits.drainIdle, s.limits.drainTotal = idle, total
}

// SetSettle changes how long Shutdown waits for goroutines once everything is closed.
func (s *Server) SetSettle(d time.Duration) { s.limits.settle = d }

// ServeSFTPIn is ServeSFTP in another directory.
var ServeSFTPIn = serveSFTP

// ServeHiding is ServeSFTP in another directory, on a kernel without Landlock.
func ServeHiding(dir string, hidden []string, in io.Reader, out io.WriteCloser) error {
	return serveSFTP(dir, &filter{hiding: newHiding(hidden), in: in, dir: dir}, out)
}

// MountedToo is newHiding on another machine.
func MountedToo(mountinfo string, paths []string) []string {
	return hiding(paths).mountedToo(readMounts(mountinfo))
}
