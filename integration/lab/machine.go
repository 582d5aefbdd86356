package lab

import (
	"errors"
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
	port    string // the switch's end of its cable

	mu   sync.Mutex
	slow *delayLine // nil until Slow
}

// Machine adds a machine to the lab. Its name is the default host name of its containers. The lab's name server does
// not know the name until Lab.Name is called.
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
			fmt.Sprintf("link add eth0 index %d address %s type veth peer name %s netns /proc/%d/fd/%d", ethIndex,
				hardware(m.Addr), m.port, os.Getpid(), l.switched.Fd()),
			fmt.Sprintf("addr add %s/32 dev eth0", m.Addr),
			"link set eth0 up",
			fmt.Sprintf("route add %s dev eth0", switchAddr),
			fmt.Sprintf("route add default via %s", switchAddr))
	})
	if err == nil {
		err = l.in(l.switched, func() error { return ip(fmt.Sprintf("link set %s master br0 up", m.port)) })
	}
	if err == nil && l.fixedNeighbours {
		const known = "neigh add %s lladdr %s dev %s nud permanent"
		toSwitch := fmt.Sprintf(known, switchAddr, hardware(switchAddr), "eth0")
		back := fmt.Sprintf(known, m.Addr, hardware(m.Addr), "br0")
		err = errors.Join(
			l.in(m.network, func() error { return ip(toSwitch) }), l.in(l.switched, func() error { return ip(back) }))
	}
	if err != nil {
		return nil, fmt.Errorf("lab: connecting machine %q: %w", name, err)
	}
	return m, nil
}

// ethIndex is the index of eth0, which leaves room for interfaces before it.
const ethIndex = 64

// Isolate gives the machine a second network without other machines, like a container bridge. The kernel lists its
// address before that of eth0.
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

// Widen changes the prefix length of the machine's address, so that it shares a subnet with the other machines on the
// switch, as in most networks.
func (m *Machine) Widen(bits int) error {
	err := m.lab.in(m.network, func() error {
		return ip(fmt.Sprintf("addr add %s/%d dev eth0", m.Addr, bits), fmt.Sprintf("addr del %s/32 dev eth0", m.Addr))
	})
	if err != nil {
		return fmt.Errorf("lab: subnet of machine %q: %w", m.Name, err)
	}
	return nil
}

// SetMTU changes the largest packet of the machine's interface.
func (m *Machine) SetMTU(bytes int) error {
	err := m.lab.in(m.network, func() error { return ip(fmt.Sprintf("link set eth0 mtu %d", bytes)) })
	if err != nil {
		return fmt.Errorf("lab: MTU of machine %q: %w", m.Name, err)
	}
	return nil
}

// CutOff unplugs the machine's cable: no packet reaches or leaves it, and no connection is reset.
func (m *Machine) CutOff() error { return m.cable("down") }

// Reconnect plugs the cable in again.
func (m *Machine) Reconnect() error { return m.cable("up") }

func (m *Machine) cable(state string) error {
	err := m.lab.in(m.lab.switched, func() error { return ip(fmt.Sprintf("link set %s %s", m.port, state)) })
	if err != nil {
		return fmt.Errorf("lab: cable of machine %q: %w", m.Name, err)
	}
	return nil
}

// Slow delays every frame to and from the machine by delay, so that a round trip takes 2*delay longer, and drops the
// given fraction (0 to 1) of them. A second call replaces the values of the first.
//
// It replaces `tc netem`, which the kernels of small virtual machines often lack.
func (m *Machine) Slow(delay time.Duration, loss float64) error {
	if delay < 0 || loss < 0 || loss > 1 {
		return fmt.Errorf("lab: machine %q: delay %s is negative, or loss %v is not between 0 and 1",
			m.Name, delay, loss)
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
		_ = m.network.Close() // the kernel removes the namespace and the veth pair after their last user
	}
}
