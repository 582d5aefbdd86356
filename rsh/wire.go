package rsh

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/rsh/frame"
)

// This is the protocol between Run and ServeAgent, over a Unix stream socket. Both ends are the same program, so it has
// a name and no negotiation. A frame is a kind (1 byte), the length of its content (4 bytes, big endian) and the
// content.
//
//	client: 'R' protocol NUL host NUL mode NUL terminal NUL user NUL command
//	                                     once, with stdin, stdout and stderr as SCM_RIGHTS; variables may follow the
//	                                     command, each as NUL name=value
//	client: 'S' signal number, 1 byte    any number of times
//	client: 'W' size, 4 x 2 bytes        any number of times, if there is a terminal
//	agent:  'X' status, 1 byte           the command ended by itself
//	agent:  'K' signal number, 1 byte    a signal ended it
//	agent:  'E' text                     it could not be run, or was lost
//	agent:  'A'                          the agent has no room for the three files now: ask again
//	agent:  'U' text                     the host is not one of the job's: another ssh may run it
//
//	client: 'Q' host NUL command         once, instead of 'R': does the agent run this command?
//	agent:  'Q' 0 or 1, 1 byte           1 = the host is one of the job's, or no other ssh may run the command; 0 = no
//
// The agent closes after its only frame. A client that closes earlier abandons the command.
const (
	modeSubsystem = "subsystem" // the mode of a command is ""
	maxFrame      = maxCommand + maxEnviron + 4096
)

func writeFrame(w io.Writer, kind byte, content []byte) error {
	_, err := w.Write(append(frame.Header(kind, len(content)), content...))
	return err
}

func readFrame(r io.Reader) (kind byte, content []byte, err error) {
	var h [frame.HeaderSize]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return 0, nil, err
	}
	size := binary.BigEndian.Uint32(h[1:])
	if size > maxFrame {
		return 0, nil, fmt.Errorf("a message has %d bytes, more than %d", size, maxFrame)
	}
	content = make([]byte, size)
	if _, err := io.ReadFull(r, content); err != nil {
		return 0, nil, io.ErrUnexpectedEOF
	}
	return h[0], content, nil
}

func encodeRequest(inv Invocation) []byte {
	mode := ""
	if inv.Subsystem {
		mode = modeSubsystem
	}
	parts := []string{frame.Protocol, inv.Host, mode, inv.terminal.encode(), inv.User, inv.Command}
	return []byte(strings.Join(append(parts, inv.environ...), "\x00"))
}

func decodeRequest(content []byte) (Invocation, error) {
	parts := strings.Split(string(content), "\x00")
	if len(parts) < 6 || parts[0] != frame.Protocol {
		return Invocation{}, errors.New("not a request of this version of paiinit rsh")
	}
	inv := Invocation{Host: parts[1], Subsystem: parts[2] == modeSubsystem, User: parts[4], Command: parts[5]}
	if len(parts) > 6 {
		inv.environ = parts[6:]
	}
	var err error
	inv.terminal, err = decodeTerminal(parts[3])
	if err == nil && parts[2] != "" && parts[2] != modeSubsystem {
		err = fmt.Errorf("unknown mode %q", parts[2])
	}
	return inv, err
}

// sendRequest sends the request and the three files, which arrive with its header.
func sendRequest(conn *net.UnixConn, inv Invocation, fds [3]int) error {
	content := encodeRequest(inv)
	if len(content) > maxFrame {
		return fmt.Errorf("the command and its environment have %d bytes, more than %d", len(content), maxFrame)
	}
	b := append(frame.Header(frame.Request, len(content)), content...)
	n, _, err := conn.WriteMsgUnix(b, unix.UnixRights(fds[:]...), nil)
	if err != nil || n == len(b) {
		return err
	}
	_, err = conn.Write(b[n:])
	return err
}

// errNoRoom says that the agent could not receive the files, because it has too many open (RLIMIT_NOFILE).
var errNoRoom = errors.New("too many open files: raise the limit of paiinit (ulimit -n)")

// receiveRequest is the other end of sendRequest; kind is frame.Request or frame.Known. The caller closes the
// descriptors, which are close-on-exec.
func receiveRequest(conn *net.UnixConn) (kind byte, inv Invocation, fds [3]int, err error) {
	var h [frame.HeaderSize]byte
	oob := make([]byte, unix.CmsgSpace(3*4))
	n, oobn, flags, _, err := conn.ReadMsgUnix(h[:], oob)
	if err != nil {
		return 0, inv, fds, err
	}
	got := rights(oob[:oobn])
	defer func() {
		if err != nil || kind != frame.Request {
			for _, fd := range got {
				_ = unix.Close(fd)
			}
		}
	}()
	if n == 0 {
		return 0, inv, fds, io.EOF
	}
	if flags&unix.MSG_CTRUNC != 0 && len(got) < 3 { // recvmsg(2): the process may open no more files
		return 0, inv, fds, errNoRoom
	}
	if h[0] != frame.Known && len(got) != 3 {
		return 0, inv, fds, fmt.Errorf("a request has %d files, expected 3", len(got))
	}
	kind, content, err := readFrame(io.MultiReader(bytes.NewReader(h[:n]), conn))
	if err != nil {
		return 0, inv, fds, err
	}
	switch kind {
	case frame.Known:
		inv.Host, inv.Command, _ = strings.Cut(string(content), "\x00")
	case frame.Request:
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
