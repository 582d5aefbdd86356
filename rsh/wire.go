package rsh

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/rsh/frame"
)

// The protocol between Run and ServeAgent, over a Unix stream socket. Both ends are the same program, so it has a name
// and no negotiation. A frame is a kind (1 byte), the length of its content (4 bytes, big endian) and the content.
//
//	client: 'R' protocol NUL host NUL mode NUL terminal NUL user NUL command
//	                                     once, with stdin, stdout and stderr as SCM_RIGHTS; after the command may come
//	                                     variables, each as NUL name=value
//	client: 'S' signal number, 1 byte    any number of times
//	client: 'W' size, 4 x 2 bytes        any number of times, if there is a terminal
//	agent:  'X' status, 1 byte           the command ended by itself
//	agent:  'K' signal number, 1 byte    a signal ended it
//	agent:  'E' text                     it could not be run, or was lost
//	agent:  'A'                          it has no room for the three files now: ask again
//	agent:  'U' text                     the host is not one of the job's: another ssh may run it
//
//	client: 'Q' host NUL command         once, instead of 'R': is the host one of the job's?
//	agent:  'Q' 0 or 1, 1 byte           1 = yes, or no other ssh may run the command
//
// The agent closes after its only frame. A client that closes earlier gives the command up.
const (
	protocol = frame.Protocol

	frameRequest = frame.Request
	frameKnown   = 'Q'
	frameForeign = 'U'
	frameAgain   = 'A'
	frameSignal  = frame.Signal
	frameResize  = 'W'
	frameExit    = frame.Exit
	frameKilled  = frame.Killed
	frameError   = 'E'

	modeCommand   = ""
	modeSubsystem = "subsystem"

	headerSize = frame.HeaderSize
	maxFrame   = maxCommand + maxEnviron + 4096
)

func header(kind byte, n int) []byte { return frame.Header(kind, n) }

func writeFrame(w io.Writer, kind byte, content []byte) error {
	_, err := w.Write(append(header(kind, len(content)), content...))
	return err
}

// parseHeader refuses lengths that no frame has, before anything is allocated for them.
func parseHeader(h []byte) (kind byte, n int, err error) {
	size := binary.BigEndian.Uint32(h[1:])
	if size > maxFrame {
		return 0, 0, fmt.Errorf("a message of %d bytes, %d are possible", size, maxFrame)
	}
	return h[0], int(size), nil
}

func readFrame(r io.Reader) (kind byte, content []byte, err error) {
	var h [headerSize]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return 0, nil, err
	}
	kind, n, err := parseHeader(h[:])
	if err != nil {
		return 0, nil, err
	}
	content = make([]byte, n)
	if _, err := io.ReadFull(r, content); err != nil {
		return 0, nil, io.ErrUnexpectedEOF
	}
	return kind, content, nil
}

func encodeRequest(inv Invocation) []byte {
	mode := modeCommand
	if inv.Subsystem {
		mode = modeSubsystem
	}
	parts := append([]string{protocol, inv.Host, mode, inv.terminal.encode(), inv.User, inv.Command}, inv.environ...)
	return []byte(strings.Join(parts, "\x00"))
}

func decodeRequest(content []byte) (Invocation, error) {
	parts := strings.Split(string(content), "\x00")
	if len(parts) < 6 || parts[0] != protocol {
		return Invocation{}, errors.New("not a request of this version of paiinit rsh")
	}
	inv := Invocation{Host: parts[1], User: parts[4], Command: parts[5]}
	if len(parts) > 6 {
		inv.environ = parts[6:]
	}
	var err error
	if inv.terminal, err = decodeTerminal(parts[3]); err != nil {
		return Invocation{}, err
	}
	switch parts[2] {
	case modeCommand:
	case modeSubsystem:
		inv.Subsystem = true
	default:
		return Invocation{}, fmt.Errorf("unknown mode %q", parts[2])
	}
	return inv, nil
}

// sendRequest sends the request and the three files, which arrive with its header.
func sendRequest(conn *net.UnixConn, inv Invocation, fds [3]int) error {
	content := encodeRequest(inv)
	if len(content) > maxFrame {
		return fmt.Errorf("the command has %d bytes with its environment, %d are possible", len(content), maxFrame)
	}
	b := append(header(frameRequest, len(content)), content...)
	n, _, err := conn.WriteMsgUnix(b, unix.UnixRights(fds[:]...), nil)
	if err != nil || n == len(b) {
		return err
	}
	_, err = conn.Write(b[n:])
	return err
}

// errNoRoom says that files were lost on their way for want of descriptors (RLIMIT_NOFILE).
var errNoRoom = errors.New("no room for the files of a command: the limit of open files is reached (ulimit -n)")

// receiveRequest is the other end of sendRequest; kind is that of the frame: frameRequest or frameKnown.
// The caller closes the descriptors, which are close-on-exec.
func receiveRequest(conn *net.UnixConn) (kind byte, inv Invocation, fds [3]int, err error) {
	var h [headerSize]byte
	oob := make([]byte, unix.CmsgSpace(3*4))
	n, oobn, flags, _, err := conn.ReadMsgUnix(h[:], oob)
	if err != nil {
		return 0, inv, fds, err
	}
	got := rights(oob[:oobn])
	defer func() {
		if err != nil || kind != frameRequest {
			for _, fd := range got {
				_ = unix.Close(fd)
			}
		}
	}()
	if n == 0 {
		return 0, inv, fds, io.EOF
	}
	if flags&unix.MSG_CTRUNC != 0 && len(got) < 3 { // recvmsg(2): the process may have no more files open
		return 0, inv, fds, errNoRoom
	}
	if h[0] != frameKnown && len(got) != 3 {
		return 0, inv, fds, fmt.Errorf("a request with %d files, it needs 3", len(got))
	}
	if _, err := io.ReadFull(conn, h[n:]); err != nil {
		return 0, inv, fds, io.ErrUnexpectedEOF
	}
	kind, size, err := parseHeader(h[:])
	if err != nil {
		return 0, inv, fds, err
	}
	content := make([]byte, size)
	if _, err := io.ReadFull(conn, content); err != nil {
		return 0, inv, fds, io.ErrUnexpectedEOF
	}
	switch kind {
	case frameKnown:
		inv.Host, inv.Command, _ = strings.Cut(string(content), "\x00")
	case frameRequest:
		copy(fds[:], got)
		inv, err = decodeRequest(content)
	default:
		err = fmt.Errorf("unknown message %q", kind)
	}
	return kind, inv, fds, err
}

// rights returns the file descriptors in control messages.
func rights(oob []byte) (fds []int) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for _, m := range msgs {
		if got, err := unix.ParseUnixRights(&m); err == nil {
			fds = append(fds, got...)
		}
	}
	return fds
}
