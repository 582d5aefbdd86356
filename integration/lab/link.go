package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// delayLine forwards frames between two interfaces, with delay and loss.
type delayLine struct {
	delay atomic.Int64  // nanoseconds
	keep  atomic.Uint64 // number of frames to keep out of 1<<32
	ends  [2]*os.File
	work  sync.WaitGroup
}

// maxFrame is the largest frame of a veth interface: 64 KiB that are not segmented yet, after an Ethernet header and
// the virtio header.
const maxFrame = 65536 + 14 + 10

// spliceDelayLine removes port from the bridge br0 and connects it through a delay line: port, line, near - far, br0.
// It must run in the network namespace of the switch.
func spliceDelayLine(port, near, far string) (*delayLine, error) {
	// Disable ARP, or the switch would answer for its own address on port, bypassing the line.
	err := ip(fmt.Sprintf("link add %s type veth peer name %s", near, far),
		fmt.Sprintf("link set %s nomaster arp off", port),
		fmt.Sprintf("link set %s arp off up", near),
		fmt.Sprintf("link set %s master br0 up", far))
	if err != nil {
		return nil, err
	}
	d := &delayLine{}
	d.set(0, 0)
	for i, name := range []string{port, near} {
		if d.ends[i], err = packetSocket(name); err != nil {
			d.close()
			return nil, fmt.Errorf("packet socket on %s: %w", name, err)
		}
	}
	d.carry(d.ends[0], d.ends[1])
	d.carry(d.ends[1], d.ends[0])
	return d, nil
}

func (d *delayLine) set(delay time.Duration, loss float64) {
	d.delay.Store(int64(delay))
	d.keep.Store(uint64((1 - loss) * (1 << 32)))
}

func (d *delayLine) close() {
	for _, end := range d.ends {
		if end != nil {
			_ = end.Close()
		}
	}
	d.work.Wait()
}

type frame struct {
	due  time.Time
	data []byte
}

// carry forwards frames in one direction until the line is closed.
func (d *delayLine) carry(from, to *os.File) {
	queue := make(chan frame, 4096)
	d.work.Go(func() {
		defer close(queue)
		buf := make([]byte, maxFrame)
		for {
			n, err := from.Read(buf)
			if errors.Is(err, os.ErrClosed) {
				return
			}
			if err != nil || n == 0 || uint64(rand.Uint32()) >= d.keep.Load() {
				continue // each CutOff causes one ENETDOWN
			}
			f := frame{time.Now().Add(time.Duration(d.delay.Load())), append([]byte(nil), buf[:n]...)}
			select {
			case queue <- f:
			default: // drop it, as a full link does
			}
		}
	})
	d.work.Go(func() {
		for f := range queue {
			if wait := time.Until(f.due); wait > 0 {
				<-time.After(wait)
			}
			_, _ = to.Write(f.data) // lost if the interface is down
		}
	})
}

// packetSocket opens a socket for the whole frames of an interface. Each frame follows a virtio_net_hdr, which
// describes the checksum and segmentation that veth leaves undone (packet(7), PACKET_VNET_HDR).
func packetSocket(name string) (*os.File, error) {
	iface, err := net.InterfaceByName(name)
	if err != nil {
		return nil, err
	}
	all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
	// Set the protocol only in bind, or the socket would receive from every interface before.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	for _, option := range []int{unix.PACKET_VNET_HDR, unix.PACKET_IGNORE_OUTGOING} {
		if err == nil {
			err = os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_PACKET, option, 1))
		}
	}
	if err == nil {
		err = os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: iface.Index}))
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}
