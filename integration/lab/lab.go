// Package lab makes many hosts on one Linux machine, for tests, demonstrations and measurements.
//
// It hides namespaces. A Machine is a network namespace with one address, connected by a cable (a veth
// pair) to a switch (a bridge in a network namespace of its own, out of the reach of the packet filters of
// this host). A Container is a program that runs as PID 1 of its own PID, mount, UTS and IPC namespaces on a
// machine. Several containers may share a machine, as with Docker's host networking. A machine can be cut off
// and slowed, a container killed, paused, signalled and looked into.
//
// Nothing of a lab has a name on this host: namespaces are held by open files and by the containers, which the
// kernel kills when the process that made the lab ends, however it ends.
//
// A container is no security boundary: its root file system is that of this host, with tmpfs on /run, /tmp and
// /dev/shm. The lab connects nothing to the outside.
//
// The caller's main or TestMain calls Main before anything else, because the program is executed again inside
// the new namespaces.
package lab

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// ErrClosed is returned by everything that is asked of a closed lab.
var ErrClosed = errors.New("lab: closed")

// Config says how a lab is made. The zero value is ready to use.
type Config struct {
	// OnLine, if set, is called with every line that a container writes, one call at a time, in the order of
	// arrival. It must not block for long.
	OnLine func(Line)
}

// Lab is a switch with machines on it, and a name server. Its methods may be called from several goroutines.
type Lab struct {
	onLine func(Line)

	calls    chan call // to thread
	quit     chan struct{}
	stopped  chan struct{} // thread has ended
	home     *os.File      // the network namespace that we came from
	switched *os.File      // the network namespace of the switch
	names    *nameServer
	next     netip.Addr // of the next machine

	mu         sync.Mutex
	closed     bool
	machines   []*Machine
	containers []*Container
	writing    sync.Mutex // of onLine
}

// The addresses of a lab: the switch has the first one, which is the name server and everybody's gateway to all others; machines
// follow from .0.10 on. The switch forwards packets, not frames: if machines knew each other's hardware addresses, the table of
// those, which the kernel has once for all namespaces, would overflow with 1,024 entries (arp(7), gc_thresh3), at 32 machines.
var (
	subnet       = netip.MustParsePrefix("10.77.0.0/16")
	switchAddr   = netip.MustParseAddr("10.77.0.1")
	firstMachine = netip.MustParseAddr("10.77.0.10")
)

// New makes an empty lab. It needs root, which Main makes out of a user namespace where it can, and `ip`
// of iproute2; Missing tells people what they have to install.
func New(cfg Config) (*Lab, error) {
	home, err := os.Open("/proc/self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("lab: opening the network namespace: %w", err)
	}
	l := &Lab{
		onLine:  cfg.OnLine,
		calls:   make(chan call),
		quit:    make(chan struct{}),
		stopped: make(chan struct{}),
		home:    home,
		next:    firstMachine,
	}
	go l.thread()
	if err := l.makeSwitch(); err != nil {
		_ = l.Close()
		return nil, err
	}
	return l, nil
}

func (l *Lab) makeSwitch() (err error) {
	if l.switched, err = l.newNetwork(); err != nil {
		return err
	}
	return l.in(l.switched, func() error {
		err := ip("link set lo up",
			"link add br0 address 02:00:00:00:00:01 type bridge forward_delay 0 stp_state 0 mcast_snooping 0",
			fmt.Sprintf("addr add %s/%d dev br0", switchAddr, subnet.Bits()),
			"link set br0 up")
		if err != nil {
			return fmt.Errorf("lab: making the switch: %w", err)
		}
		for name, value := range map[string]string{"ip_forward": "1", "conf/all/send_redirects": "0", "conf/br0/send_redirects": "0"} {
			if err := os.WriteFile("/proc/sys/net/ipv4/"+name, []byte(value), 0); err != nil {
				return fmt.Errorf("lab: making the switch: %w", err)
			}
		}
		l.names, err = serveNames(switchAddr)
		return err
	})
}

// Name makes the lab's name server answer name with addr, besides the addresses it already has. It gives
// several addresses in random order, as Docker's resolver does.
func (l *Lab) Name(name string, addr netip.Addr) { l.names.add(name, addr) }

// Reverse makes the lab's name server say that addr is called name.
func (l *Lab) Reverse(addr netip.Addr, name string) { l.names.reverse(addr, name) }

// Close kills every container, removes all machines and the switch, and returns when everything is gone. It
// may be called more than once.
func (l *Lab) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	machines, containers := l.machines, l.containers
	l.mu.Unlock()

	for _, c := range containers {
		c.Kill()
	}
	for _, c := range containers {
		<-c.done
	}
	for _, m := range machines {
		m.close()
	}
	if l.names != nil {
		l.names.close()
	}
	close(l.quit)
	<-l.stopped
	if l.switched != nil {
		_ = l.switched.Close()
	}
	return l.home.Close()
}

// call is a function that thread has to run in a network namespace.
type call struct {
	network *os.File // nil: a new one
	f       func() error
	done    chan error
}

// in runs f on a thread that is in the given network namespace: sockets that f opens and processes that it
// starts are in there. f must not start goroutines that do so.
func (l *Lab) in(network *os.File, f func() error) error {
	c := call{network, f, make(chan error, 1)}
	select {
	case l.calls <- c:
		return <-c.done
	case <-l.quit:
		return ErrClosed
	}
}

// newNetwork makes a network namespace that lives as long as the returned file and whatever runs in it.
func (l *Lab) newNetwork() (network *os.File, err error) {
	err = l.in(nil, func() error {
		network, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	return network, err
}

// thread runs calls one by one on one thread that lives as long as the lab: it is the parent whose death kills
// the containers (PR_SET_PDEATHSIG speaks of the thread, not of the process).
func (l *Lab) thread() {
	defer close(l.stopped)
	runtime.LockOSThread()
	for {
		select {
		case <-l.quit:
			runtime.UnlockOSThread()
			return
		case c := <-l.calls:
			c.done <- l.visit(c)
		}
	}
}

func (l *Lab) visit(c call) error {
	var err error
	if c.network == nil {
		err = unix.Unshare(unix.CLONE_NEWNET)
	} else {
		err = unix.Setns(int(c.network.Fd()), unix.CLONE_NEWNET)
	}
	if err != nil {
		return fmt.Errorf("lab: entering a network namespace: %w", err)
	}
	err = c.f()
	if back := unix.Setns(int(l.home.Fd()), unix.CLONE_NEWNET); back != nil {
		// Nothing that runs on this thread from now on would be where it thinks it is.
		panic(fmt.Sprintf("lab: returning to the network namespace: %v", back))
	}
	return err
}

// ip runs iproute2's commands in the network namespace of the calling thread.
func ip(commands ...string) error {
	path, err := lookSbin("ip")
	if err != nil {
		return err
	}
	cmd := exec.Command(path, "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\n")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(commands, "; "), err, bytes.TrimSpace(out))
	}
	return nil
}

// lookSbin finds an administrator's program also where the PATH of an ordinary user does not lead.
func lookSbin(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if path, err := exec.LookPath(dir + "/" + name); err == nil {
			return path, nil
		}
	}
	return "", err
}

// Containers returns the containers of the lab in the order in which they were started.
func (l *Lab) Containers() []*Container {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.containers)
}
