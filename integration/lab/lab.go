// Package lab simulates many hosts on one Linux machine, for tests, demonstrations and measurements.
//
// It hides namespaces. A Machine is a network namespace with one address, connected by a cable (a veth pair) to a
// switch (a bridge in a network namespace of its own, which the packet filters of this host do not reach). A Container
// is a program that runs as PID 1 of its own PID, mount, UTS and IPC namespaces on a machine. Several containers may
// share a machine, as with Docker's host networking. Callers can cut off and slow machines, and kill, pause, signal and
// inspect containers.
//
// Nothing of a lab has a name on this host: open files and the containers hold the namespaces. The kernel kills the
// containers when the process that created the lab ends, for any reason.
//
// A container is no security boundary: its root file system is that of this host, with tmpfs on /run, /tmp and
// /dev/shm. The lab has no connection to other networks.
//
// The caller's main or TestMain calls Main before anything else, because the lab executes the program again inside the
// new namespaces.
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

	"github.com/paiinit/paiinit/integration/hang"
)

// ErrClosed is the error of every operation on a closed lab.
var ErrClosed = errors.New("lab: closed")

// Config configures a lab. The zero value is ready to use.
type Config struct {
	// OnLine, if set, is called for each line that a container writes, one call at a time, in the order of arrival. It
	// must not block for long.
	OnLine func(Line)
	// FixedNeighbours gives the switch and the machines each other's hardware addresses, so that they fill no place of
	// the kernel's neighbour table. Labs of more than 500 machines need it. A machine that is cut off is then never
	// reported as unreachable.
	FixedNeighbours bool
}

// Lab is a switch with machines on it, and a name server. Its methods may be called from several goroutines.
type Lab struct {
	onLine          func(Line)
	fixedNeighbours bool

	calls    chan call // to thread
	quit     chan struct{}
	stopped  chan struct{} // closed when thread has ended
	home     *os.File      // the network namespace of this process
	switched *os.File      // the network namespace of the switch
	names    *nameServer
	next     netip.Addr // address of the next machine

	mu         sync.Mutex
	closed     bool
	machines   []*Machine
	containers []*Container
	writing    sync.Mutex // serialises onLine
}

// The switch has the first address of the subnet; it is the name server, and the machines' gateway to each other. The
// machines follow from .0.10 on. The switch forwards packets, not frames, because 32 machines that know each other's
// hardware addresses would fill the kernel's neighbour table: all namespaces share its 1,024 entries (arp(7),
// gc_thresh3), of which the switch and each machine use one for each other.
var (
	subnet       = netip.MustParsePrefix("10.77.0.0/16")
	switchAddr   = netip.MustParseAddr("10.77.0.1")
	firstMachine = netip.MustParseAddr("10.77.0.10")
)

// hardware returns the hardware address of the interface with an address of the subnet.
func hardware(addr netip.Addr) string {
	a := addr.As4()
	return fmt.Sprintf("02:00:%02x:%02x:%02x:%02x", a[0], a[1], a[2], a[3])
}

// New creates an empty lab. It needs iproute2's `ip` and root, which Main gets from a user namespace if it can. Missing
// lists what people have to install.
func New(cfg Config) (*Lab, error) {
	home, err := os.Open("/proc/self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("lab: opening the network namespace: %w", err)
	}
	l := &Lab{
		onLine: cfg.OnLine, fixedNeighbours: cfg.FixedNeighbours,
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
			fmt.Sprintf("link add br0 address %s type bridge forward_delay 0 stp_state 0 mcast_snooping 0",
				hardware(switchAddr)),
			fmt.Sprintf("addr add %s/%d dev br0", switchAddr, subnet.Bits()),
			"link set br0 up")
		if err != nil {
			return fmt.Errorf("lab: making the switch: %w", err)
		}
		for name, value := range map[string]string{
			"ip_forward": "1", "conf/all/send_redirects": "0", "conf/br0/send_redirects": "0",
		} {
			if err := os.WriteFile("/proc/sys/net/ipv4/"+name, []byte(value), 0); err != nil {
				return fmt.Errorf("lab: making the switch: %w", err)
			}
		}
		l.names, err = serveNames(switchAddr)
		return err
	})
}

// Name adds addr to the addresses of name in the lab's name server, which answers in random order, as Docker's resolver
// does.
func (l *Lab) Name(name string, addr netip.Addr) { l.names.add(name, addr) }

// Forget removes all addresses of name: the lab's name server then answers that the name does not exist.
func (l *Lab) Forget(name string) { l.names.forget(name) }

// MuteNames makes the lab's name server answer nothing, or answer again.
func (l *Lab) MuteNames(silent bool) { l.names.mute(silent) }

// Reverse makes the lab's name server resolve addr to name.
func (l *Lab) Reverse(addr netip.Addr, name string) { l.names.reverse(addr, name) }

// Close kills all containers, removes the machines and the switch, and returns when all are gone. It may be called more
// than once.
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
		_ = c.Thaw() // the kernel does not end a frozen process
		c.ReadStderr()
	}
	for _, c := range containers {
		<-c.done
		c.groups.remove()
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

// call is a function for thread to run in a network namespace.
type call struct {
	network *os.File // nil = a new one
	f       func() error
	done    chan error
}

// in runs f on a thread in the given network namespace. Sockets and processes that f creates belong to the namespace; f
// must not create them in other goroutines.
func (l *Lab) in(network *os.File, f func() error) error {
	c := call{network, f, make(chan error, 1)}
	select {
	case l.calls <- c:
		return <-c.done
	case <-l.quit:
		return ErrClosed
	}
}

// newNetwork creates a network namespace, which exists as long as the returned file or a process in it.
func (l *Lab) newNetwork() (network *os.File, err error) {
	err = l.in(nil, func() error {
		network, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	return network, err
}

// thread runs calls, one at a time, on one thread that lives as long as the lab. The containers die with this thread,
// because PR_SET_PDEATHSIG watches the parent's thread, not its process.
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
		// All further calls on this thread would run in the wrong namespace.
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

// lookSbin looks for a program in PATH and in the sbin directories, which an ordinary user's PATH lacks.
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

// Running returns hang.Report of the containers that have not ended. Their output then ends with the stacks of their
// goroutines. It first thaws frozen containers and reads their standard error again.
func (l *Lab) Running() string {
	var left []hang.Container
	for _, c := range l.left() {
		_ = c.Thaw()
		c.ReadStderr()
		left = append(left, hang.Container{Name: c.Name, First: c.PID()})
	}
	return hang.Report(left...)
}

// Processes returns hang.Processes of the containers that have not ended.
func (l *Lab) Processes() string {
	var left []hang.Container
	for _, c := range l.left() {
		left = append(left, hang.Container{Name: c.Name, First: c.PID()})
	}
	return hang.Processes(left...)
}

// left returns the containers that have not ended.
func (l *Lab) left() []*Container {
	return slices.DeleteFunc(l.Containers(), func(c *Container) bool {
		select {
		case <-c.Ended():
			return true
		default:
			return false
		}
	})
}

// Containers returns the containers of the lab in the order of their starts.
func (l *Lab) Containers() []*Container {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.containers)
}
