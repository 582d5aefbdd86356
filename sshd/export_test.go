package sshd

import "time"

// SetLogin changes the login deadline.
func (s *Server) SetLogin(d time.Duration) { s.limits.login = d }

// SetHandshakes changes how many handshakes run at once, and for how long each keeps its place.
func (s *Server) SetHandshakes(n int, turn time.Duration) {
	s.spoken, s.quiet, s.limits.turn = make(chan struct{}, n), make(chan struct{}, n), turn
}

// SetKeepalive changes the interval.
func (s *Server) SetKeepalive(d time.Duration) { s.limits.keepalive = d }

// SetDrain changes how long output is waited for that somebody else than the command holds open.
func (s *Server) SetDrain(idle, total time.Duration) {
	s.limits.drainIdle, s.limits.drainTotal = idle, total
}

// SetSettle changes how long Shutdown waits for goroutines once everything is closed.
func (s *Server) SetSettle(d time.Duration) { s.limits.settle = d }
