// Package rfc4254 has what both ends of an SSH session encode: terminals and the names of signals. The sections are
// those of RFC 4254.
package rfc4254

import (
	"encoding/binary"
	"strings"
	"syscall"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"
)

// Size is the payload of "window-change" (6.7): a terminal in characters and in pixels; 0 = unknown.
type Size struct{ Columns, Rows, Width, Height uint32 }

// PTYRequest is the payload of "pty-req" (6.2): the type of the terminal, as in TERM, its Size, and its modes (8).
type PTYRequest struct {
	Term                         string
	Columns, Rows, Width, Height uint32
	Modes                        string
}

// ExitSignal is the payload of "exit-signal" (6.10).
type ExitSignal struct {
	Signal            string
	CoreDumped        bool
	Message, Language string
}

// SignalName returns the name that 6.10 or OpenSSH gives a signal (except INFO), or "".
func SignalName(sig syscall.Signal) string {
	switch sig {
	case unix.SIGABRT, unix.SIGALRM, unix.SIGFPE, unix.SIGHUP, unix.SIGILL, unix.SIGINT, unix.SIGKILL,
		unix.SIGPIPE, unix.SIGQUIT, unix.SIGSEGV, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2:
		return strings.TrimPrefix(unix.SignalName(sig), "SIG")
	}
	return ""
}

// Mode is one terminal mode (8).
type Mode struct {
	Op  byte
	Arg uint32
}

// EncodeModes returns the modes that both section 8 and Linux define.
func EncodeModes(t *unix.Termios) []byte {
	const end, none = 0, 255
	var b []byte
	mode := func(op byte, value uint32) { b = binary.BigEndian.AppendUint32(append(b, op), value) }
	for _, c := range controlChars() {
		value := uint32(t.Cc[c.index])
		if value == 0 { // termios(3), _POSIX_VDISABLE
			value = none
		}
		mode(c.op, value)
	}
	for _, f := range flags(t) {
		mode(f.op, min(*f.field&f.bit, 1))
	}
	mode(ssh.TTY_OP_ISPEED, 38400)
	mode(ssh.TTY_OP_OSPEED, 38400)
	return append(b, end)
}

// ApplyModes changes t. It ignores modes that Linux does not have, and line speeds, which a pseudo-terminal does not
// have.
func ApplyModes(t *unix.Termios, modes []Mode) {
	chars, bits := controlChars(), append(flags(t),
		flag{ssh.PARENB, &t.Cflag, unix.PARENB}, flag{ssh.PARODD, &t.Cflag, unix.PARODD})
	for _, m := range modes {
		for _, c := range chars {
			if c.op == m.Op {
				t.Cc[c.index] = byte(m.Arg)
				if m.Arg == 255 { // means "none"
					t.Cc[c.index] = 0
				}
			}
		}
		for _, f := range bits {
			if f.op == m.Op {
				*f.field &^= f.bit
				if m.Arg != 0 {
					*f.field |= f.bit
				}
			}
		}
		switch { // clearing CS7 or CS8 would leave five bits
		case m.Op == ssh.CS7 && m.Arg != 0:
			t.Cflag = t.Cflag&^unix.CSIZE | unix.CS7
		case m.Op == ssh.CS8 && m.Arg != 0:
			t.Cflag = t.Cflag&^unix.CSIZE | unix.CS8
		}
	}
}

// controlChar is the index of a control character in termios.
type controlChar struct {
	op    byte
	index int
}

func controlChars() []controlChar {
	return []controlChar{
		{ssh.VINTR, unix.VINTR}, {ssh.VQUIT, unix.VQUIT}, {ssh.VERASE, unix.VERASE}, {ssh.VKILL, unix.VKILL},
		{ssh.VEOF, unix.VEOF}, {ssh.VEOL, unix.VEOL}, {ssh.VEOL2, unix.VEOL2}, {ssh.VSTART, unix.VSTART},
		{ssh.VSTOP, unix.VSTOP}, {ssh.VSUSP, unix.VSUSP}, {ssh.VREPRINT, unix.VREPRINT}, {ssh.VWERASE, unix.VWERASE},
		{ssh.VLNEXT, unix.VLNEXT}, {ssh.VDISCARD, unix.VDISCARD},
	}
}

// flag is a bit in a field of termios.
type flag struct {
	op    byte
	field *uint32
	bit   uint32
}

func flags(t *unix.Termios) []flag {
	input, local, output := &t.Iflag, &t.Lflag, &t.Oflag
	return []flag{
		{ssh.IGNPAR, input, unix.IGNPAR}, {ssh.PARMRK, input, unix.PARMRK}, {ssh.INPCK, input, unix.INPCK},
		{ssh.ISTRIP, input, unix.ISTRIP}, {ssh.INLCR, input, unix.INLCR}, {ssh.IGNCR, input, unix.IGNCR},
		{ssh.ICRNL, input, unix.ICRNL}, {ssh.IUCLC, input, unix.IUCLC}, {ssh.IXON, input, unix.IXON},
		{ssh.IXANY, input, unix.IXANY}, {ssh.IXOFF, input, unix.IXOFF}, {ssh.IMAXBEL, input, unix.IMAXBEL},
		{ssh.IUTF8, input, unix.IUTF8},
		{ssh.ISIG, local, unix.ISIG}, {ssh.ICANON, local, unix.ICANON}, {ssh.XCASE, local, unix.XCASE},
		{ssh.ECHO, local, unix.ECHO}, {ssh.ECHOE, local, unix.ECHOE}, {ssh.ECHOK, local, unix.ECHOK},
		{ssh.ECHONL, local, unix.ECHONL}, {ssh.NOFLSH, local, unix.NOFLSH}, {ssh.TOSTOP, local, unix.TOSTOP},
		{ssh.IEXTEN, local, unix.IEXTEN}, {ssh.ECHOCTL, local, unix.ECHOCTL}, {ssh.ECHOKE, local, unix.ECHOKE},
		{ssh.PENDIN, local, unix.PENDIN},
		{ssh.OPOST, output, unix.OPOST}, {ssh.OLCUC, output, unix.OLCUC}, {ssh.ONLCR, output, unix.ONLCR},
		{ssh.OCRNL, output, unix.OCRNL}, {ssh.ONOCR, output, unix.ONOCR}, {ssh.ONLRET, output, unix.ONLRET},
	}
}
