package rdma

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// netlinkAnswer is what the kernel's RDMA netlink tells about the devices of this network namespace.
type netlinkAnswer struct {
	mode    string                   // "shared" or "exclusive", "" if the kernel does not tell (before 5.2)
	devices map[string]netlinkDevice // by name
}

// netlinkDevice is one device in the answer of RDMA netlink.
type netlinkDevice struct {
	protocol string // "ib", "roce", "iw", "opa" or "usnic", "" if the kernel does not tell (before 5.0)
	// driver is enum rdma_driver_id of rdma/ib_user_ioctl_verbs.h, which verbs calls must name; 0 if unknown (before
	// 5.2).
	driver uint32
	index  uint32
}

// Drivers by enum rdma_driver_id.
const (
	driverRXE = 14
	driverSIW = 18
)

// Constants of rdma/rdma_netlink.h.
const (
	nldev = 5 << 10 // RDMA_NL_NLDEV, in the upper bits of a message's type

	nldevGet        = nldev | 1
	nldevSysGet     = nldev | 6
	nldevGetChardev = nldev | 15

	attrMask        = 0x3fff // without NLA_F_NESTED and NLA_F_NET_BYTEORDER
	attrIndex       = 1
	attrName        = 2
	attrNetnsMode   = 66
	attrProtocol    = 67
	attrChardevType = 69
	attrDriverID    = 73
)

// queryNetlink asks the kernel, which answers any user. It waits at most a second for an answer.
func queryNetlink() (netlinkAnswer, error) {
	fail := func(what string, err error) (netlinkAnswer, error) {
		return netlinkAnswer{}, fmt.Errorf("%s RDMA netlink: %w", what, err)
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_RDMA)
	if err != nil {
		return fail("opening", err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}); err != nil {
		return fail("opening", err)
	}
	n := netlinkAnswer{devices: make(map[string]netlinkDevice)}
	if err := ask(fd, nldevGet, unix.NLM_F_DUMP, nil, n.addDevice); err != nil {
		return fail("listing devices by", err)
	}
	// Older kernels do not know the other requests.
	_ = ask(fd, nldevSysGet, 0, nil, n.addMode)
	for name, d := range n.devices {
		request := appendAttr(nil, attrIndex, binary.NativeEndian.AppendUint32(nil, d.index))
		request = appendAttr(request, attrChardevType, []byte("uverbs\x00"))
		_ = ask(fd, nldevGetChardev, 0, request, func(a attrs) {
			d.driver = a.number(attrDriverID)
			n.devices[name] = d
		})
	}
	return n, nil
}

func (n *netlinkAnswer) addDevice(a attrs) {
	if name := a.text(attrName); name != "" {
		n.devices[name] = netlinkDevice{protocol: a.text(attrProtocol), index: a.number(attrIndex)}
	}
}

func (n *netlinkAnswer) addMode(a attrs) {
	if v, ok := a[attrNetnsMode]; ok && len(v) > 0 {
		n.mode = "exclusive"
		if v[0] != 0 {
			n.mode = "shared"
		}
	}
}

// ask sends one request and passes each answer to f.
func ask(fd int, kind, flags uint16, body []byte, f func(attrs)) error {
	m := binary.NativeEndian.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+len(body)))
	m = binary.NativeEndian.AppendUint16(m, kind)
	m = binary.NativeEndian.AppendUint16(m, unix.NLM_F_REQUEST|unix.NLM_F_ACK|flags)
	m = append(m, 0, 0, 0, 0, 0, 0, 0, 0) // sequence and port may be 0: the socket carries one request at a time
	if err := unix.Sendto(fd, append(m, body...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	buf := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		if done, err := parseMessages(buf[:n], f); done || err != nil {
			return err
		}
	}
}

// parseMessages reads one datagram. done says that no more will follow.
func parseMessages(b []byte, f func(attrs)) (done bool, err error) {
	messages, err := syscall.ParseNetlinkMessage(b)
	for _, m := range messages {
		switch {
		case m.Header.Type == unix.NLMSG_DONE:
			return true, nil
		case m.Header.Type != unix.NLMSG_ERROR:
			f(parseAttrs(m.Data))
		case len(m.Data) < 4:
			return true, errors.New("an error without a number")
		default: // 0 acknowledges the request, after the answer
			if errno := -int32(binary.NativeEndian.Uint32(m.Data)); errno > 0 {
				return true, unix.Errno(errno)
			}
			return true, nil
		}
	}
	return false, err
}

// attrs are the attributes of a message, by number.
type attrs map[uint16][]byte

func parseAttrs(b []byte) attrs {
	a := make(attrs)
	for len(b) >= unix.SizeofNlAttr {
		size, kind := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])
		if size < unix.SizeofNlAttr || size > len(b) {
			break
		}
		a[kind&attrMask] = b[unix.SizeofNlAttr:size]
		b = b[min(align(size), len(b)):]
	}
	return a
}

func appendAttr(b []byte, kind uint16, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofNlAttr+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	return append(b, make([]byte, align(len(value))-len(value))...)
}

func align(n int) int { return (n + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }

func (a attrs) text(kind uint16) string { return strings.TrimRight(string(a[kind]), "\x00") }

func (a attrs) number(kind uint16) uint32 {
	if v := a[kind]; len(v) == 4 {
		return binary.NativeEndian.Uint32(v)
	}
	return 0
}
