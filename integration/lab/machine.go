package lab

import (
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"
)

// Machine is a network namespace with one address on the lab's switch. Its interface is eth0.
type Machine struct {
	Name string
	Addr netip.Addr

	lab     *Lab
	network *os.File
	port    string // our end of its cable, in the switch

	mu   sync.Mutex
	slow *delayLine // nil until Slow
}

// Machine adds a machine to the lab. Its name is the default host name of its containers and is not known
// to the lab's name server unless Lab.Name is called.
func (l *Lab) Machine(name string) (*Machine, error) {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil, ErrClosed
	}
	m := &Machine{Name: name, Addr: l.next, lab: l, port: fmt.Sprintf("p%d", len(l.machines))}
	l.next = l.next.Next()
	l.machines = append(l.machines, m)
	l.mu.Unlock()

	var err error
	if m.network, err = l.newNetwork(); err != nil {
		return nil, err
	}
	err = l.in(m.network, func() error {
		return ip("link set lo up",
			fmt.Sprintf("link add eth0 index %d type veth peer name %s netns /proc/%d/fd/%d", ethIndex, m.port,
				os.Getpid(), l.switched.Fd()),
			fmt.Sprintf("addr add %s/32 dev eth0", m.Addr),
			"link set eth0 up",
			fmt.Sprintf("route add %s dev eth0", switchAddr),
			fmt.Sprintf("route add default via %s", switchAddr))
	})
	if err == nil {
		err = l.in(l.switched, func() error { return ip(fmt.Sprintf("link set %s master br0 up", m.port)) })
	}
	if err != nil {
		return nil, fmt.Errorf("lab: connecting machine %q: %w", name, err)
	}
	return m, nil
}

// ethIndex is the index of eth0: there is room for interfaces before it.
const ethIndex = 64

// Isolate gives the machine a second network, on which nothing else is, as a container bridge makes one. The kernel
// lists its address before that of eth0.
func (m *Machine) Isolate(addr netip.Prefix) error {
	err := m.lab.in(m.network, func() error {
		return ip("link add isolated0 index 62 type veth peer name isolated1 index 63",
			fmt.Sprintf("addr add %s dev isolated0", addr),
			"link set isolated0 up", "link set isolated1 up")
	})
	if err != nil {
		return fmt.Errorf("lab: isolated network of machine %q: %w", m.Name, err)
	}
	return nil
}

// Widen puts the machine's address into a subnet of the given length instead of one of its own, as most networks have
// it: those of the other machines on the switch are then in it, too.
func (m *Machine) Widen(bits int) error {
	err := m.lab.in(m.network, func() error {
		return ip(fmt.Sprintf("addr add %s/%d dev eth0", m.Addr, bits), fmt.Sprintf("addr del %s/32 dev eth0", m.Addr))
	})
	if err != nil {
		return fmt.Errorf("lab: subnet of machine %q: %w", m.Name, err)
	}
	return nil
}

// CutOff pulls the machine's cable: it can reach nobody and nobody can reach it, and nobody is told.
func (m *Machine) CutOff() error { return m.cable("down") }

// Reconnect puts the cable back in.
func (m *Machine) Reconnect() error { return m.cable("up") }

func (m *Machine) cable(state string) error {
	err := m.lab.in(m.lab.switched, func() error { return ip(fmt.Sprintf("link set %s %s", m.port, state)) })
	if err != nil {
		return fmt.Errorf("lab: cable of machine %q: %w", m.Name, err)
	}
	return nil
}

// Slow delays every frame to and from the machine by delay, so that a round trip takes 2*delay longer, and
// loses the given part (0 to 1) of them. It can be called again to change that.
//
// It does what `tc netem` does, for kernels without it, which are common in small virtual machines.
func (m *Machine) Slow(delay time.Duration, loss float64) error {
	if delay < 0 || loss < 0 || loss > 1 {
		return fmt.Errorf("lab: machine %q: delay %s and loss %v are not a delay and a part of 1", m.Name, delay, loss)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.slow == nil {
		err := m.lab.in(m.lab.switched, func() (err error) {
			m.slow, err = spliceDelayLine(m.port, "d"+m.port, "e"+m.port)
			return err
		})
		if err != nil {
			return fmt.Errorf("lab: slowing machine %q: %w", m.Name, err)
		}
	}
	m.slow.set(delay, loss)
	return nil
}

func (m *Machine) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.slow != nil {
		m.slow.close()
	}
	if m.network != nil {
		_ = m.network.Close() // the veth pair goes with the namespace, and that with its last user
	}
}
