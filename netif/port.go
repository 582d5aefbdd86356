package netif

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// HeldPort is a TCP port that no other socket can bind or connect to while it is held. A nil *HeldPort holds none.
type HeldPort struct{ fd, number int }

// HoldPort takes a port below the range of automatic ports, because an outgoing connection could take one of those
// between Release and use (ip_local_port_range, Documentation/networking/ip-sysctl.rst of the kernel).
func HoldPort(random func(n int) int) (*HeldPort, error) {
	const low, count, tries = 20000, 10000, 64
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	wildcard := func(port int) unix.Sockaddr { return &unix.SockaddrInet6{Port: port} }
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0)
	} else { // a kernel without IPv6
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		wildcard = func(port int) unix.Sockaddr { return &unix.SockaddrInet4{Port: port} }
	}
	for i := 0; err == nil && i < tries; i++ {
		port := low + random(count)
		taken := unix.Bind(fd, wildcard(port))
		if taken == nil {
			return &HeldPort{fd, port}, nil
		}
		if !errors.Is(taken, unix.EADDRINUSE) {
			err = taken
		}
	}
	if err == nil {
		err = fmt.Errorf("%d ports from %d on are in use", tries, low)
	}
	if fd >= 0 {
		_ = unix.Close(fd)
	}
	return nil, err
}

// Number returns the number of the port; 0 if none is held.
func (p *HeldPort) Number() int {
	if p == nil {
		return 0
	}
	return p.number
}

// Release frees the port, so that the next process can bind it. A second call does nothing; calls must not overlap.
func (p *HeldPort) Release() {
	if p != nil && p.fd >= 0 {
		_ = unix.Close(p.fd)
		p.fd = -1
	}
}
