package rsh

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"
)

// terminal is what a command is told about the terminal that it gets.
type terminal struct {
	Name  string // of its type, as in TERM; "" = unknown
	Size  windowSize
	Modes []byte // as RFC 4254, 8 encodes them; nil = the peer's own
}

// windowSize is that of a terminal in characters and in pixels; 0 = unknown.
type windowSize struct{ Columns, Rows, Width, Height uint16 }

// request is the payload of "pty-req" (RFC 4254, 6.2).
func (t *terminal) request() []byte {
	return ssh.Marshal(struct {
		Name                         string
		Columns, Rows, Width, Height uint32
		Modes                        string
	}{t.Name, uint32(t.Size.Columns), uint32(t.Size.Rows), uint32(t.Size.Width), uint32(t.Size.Height), string(t.Modes)})
}

// change is the payload of "window-change" (RFC 4254, 6.7).
func (s windowSize) change() []byte {
	return ssh.Marshal(struct{ Columns, Rows, Width, Height uint32 }{uint32(s.Columns), uint32(s.Rows), uint32(s.Width), uint32(s.Height)})
}

// encode is for a request to the agent: "" for no terminal, else size, modes and name, separated by spaces.
func (t *terminal) encode() string {
	if t == nil {
		return ""
	}
	return fmt.Sprintf("%d %d %d %d %x %s", t.Size.Columns, t.Size.Rows, t.Size.Width, t.Size.Height, t.Modes, t.Name)
}

func decodeTerminal(text string) (*terminal, error) {
	if text == "" {
		return nil, nil
	}
	fields := strings.SplitN(text, " ", 6)
	if len(fields) != 6 {
		return nil, fmt.Errorf("terminal %q is not understood", text)
	}
	t := &terminal{Name: fields[5]}
	for i, to := range []*uint16{&t.Size.Columns, &t.Size.Rows, &t.Size.Width, &t.Size.Height} {
		n, err := strconv.ParseUint(fields[i], 10, 16)
		if err != nil {
			return nil, fmt.Errorf("size of the terminal: %w", err)
		}
		*to = uint16(n)
	}
	var err error
	if t.Modes, err = hex.DecodeString(fields[4]); err != nil {
		return nil, fmt.Errorf("modes of the terminal: %w", err)
	}
	return t, nil
}

func (s windowSize) bytes() []byte {
	var b []byte
	for _, n := range []uint16{s.Columns, s.Rows, s.Width, s.Height} {
		b = binary.BigEndian.AppendUint16(b, n)
	}
	return b
}

func parseSize(b []byte) (s windowSize, ok bool) {
	if len(b) != 8 {
		return s, false
	}
	for i, to := range []*uint16{&s.Columns, &s.Rows, &s.Width, &s.Height} {
		*to = binary.BigEndian.Uint16(b[2*i:])
	}
	return s, true
}

// screen is the terminal of a person.
type screen struct {
	file  *os.File
	saved *unix.Termios // before raw; nil = not raw
}

// openScreen returns the terminal behind a file, or nil if the file is none.
func openScreen(file *os.File) *screen {
	s := &screen{file: file}
	if file == nil || s.with(func(fd int) error { _, err := unix.IoctlGetTermios(fd, unix.TCGETS); return err }) != nil {
		return nil
	}
	return s
}

// with calls f with the descriptor, which stays as blocking as it is.
func (s *screen) with(f func(fd int) error) error {
	raw, err := s.file.SyscallConn()
	if err != nil {
		return err
	}
	var ferr error
	return errors.Join(raw.Control(func(fd uintptr) { ferr = f(int(fd)) }), ferr)
}

func (s *screen) size() (size windowSize) {
	_ = s.with(func(fd int) error { // a terminal without a size has an unknown one
		w, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
		if err == nil {
			size = windowSize{w.Col, w.Row, w.Xpixel, w.Ypixel}
		}
		return err
	})
	return size
}

// raw hands every key to the other side: nothing is echoed, edited, or turned into a signal here. It returns the modes until
// then, which are the ones that the other side should have.
func (s *screen) raw() (modes []byte, err error) {
	err = s.with(func(fd int) error {
		t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		if err != nil {
			return err
		}
		saved := *t
		t.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON | unix.IXANY | unix.IXOFF
		t.Oflag &^= unix.OPOST
		t.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
		t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 1, 0
		if err := unix.IoctlSetTermios(fd, unix.TCSETSW, t); err != nil {
			return err
		}
		s.saved, modes = &saved, encodeModes(&saved)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("setting up the terminal: %w", err)
	}
	return modes, nil
}

// restore undoes raw.
func (s *screen) restore() {
	if s.saved != nil {
		_ = s.with(func(fd int) error { return unix.IoctlSetTermios(fd, unix.TCSETSW, s.saved) }) // it may be gone
		s.saved = nil
	}
}

// encodeModes writes the modes that RFC 4254, 8 has and Linux too.
func encodeModes(t *unix.Termios) []byte {
	const end, none = 0, 255
	var b []byte
	mode := func(op byte, value uint32) { b = binary.BigEndian.AppendUint32(append(b, op), value) }
	for _, c := range []struct {
		op    byte
		index int
	}{
		{ssh.VINTR, unix.VINTR}, {ssh.VQUIT, unix.VQUIT}, {ssh.VERASE, unix.VERASE}, {ssh.VKILL, unix.VKILL}, {ssh.VEOF, unix.VEOF},
		{ssh.VEOL, unix.VEOL}, {ssh.VEOL2, unix.VEOL2}, {ssh.VSTART, unix.VSTART}, {ssh.VSTOP, unix.VSTOP}, {ssh.VSUSP, unix.VSUSP},
		{ssh.VREPRINT, unix.VREPRINT}, {ssh.VWERASE, unix.VWERASE}, {ssh.VLNEXT, unix.VLNEXT}, {ssh.VDISCARD, unix.VDISCARD},
	} {
		value := uint32(t.Cc[c.index])
		if value == 0 { // termios(3), _POSIX_VDISABLE
			value = none
		}
		mode(c.op, value)
	}
	for _, f := range []struct {
		op         byte
		field, bit uint32
	}{
		{ssh.IGNPAR, t.Iflag, unix.IGNPAR}, {ssh.PARMRK, t.Iflag, unix.PARMRK}, {ssh.INPCK, t.Iflag, unix.INPCK}, {ssh.ISTRIP, t.Iflag, unix.ISTRIP},
		{ssh.INLCR, t.Iflag, unix.INLCR}, {ssh.IGNCR, t.Iflag, unix.IGNCR}, {ssh.ICRNL, t.Iflag, unix.ICRNL}, {ssh.IUCLC, t.Iflag, unix.IUCLC},
		{ssh.IXON, t.Iflag, unix.IXON}, {ssh.IXANY, t.Iflag, unix.IXANY}, {ssh.IXOFF, t.Iflag, unix.IXOFF}, {ssh.IMAXBEL, t.Iflag, unix.IMAXBEL},
		{ssh.IUTF8, t.Iflag, unix.IUTF8},
		{ssh.ISIG, t.Lflag, unix.ISIG}, {ssh.ICANON, t.Lflag, unix.ICANON}, {ssh.XCASE, t.Lflag, unix.XCASE}, {ssh.ECHO, t.Lflag, unix.ECHO},
		{ssh.ECHOE, t.Lflag, unix.ECHOE}, {ssh.ECHOK, t.Lflag, unix.ECHOK}, {ssh.ECHONL, t.Lflag, unix.ECHONL}, {ssh.NOFLSH, t.Lflag, unix.NOFLSH},
		{ssh.TOSTOP, t.Lflag, unix.TOSTOP}, {ssh.IEXTEN, t.Lflag, unix.IEXTEN}, {ssh.ECHOCTL, t.Lflag, unix.ECHOCTL}, {ssh.ECHOKE, t.Lflag, unix.ECHOKE},
		{ssh.PENDIN, t.Lflag, unix.PENDIN},
		{ssh.OPOST, t.Oflag, unix.OPOST}, {ssh.OLCUC, t.Oflag, unix.OLCUC}, {ssh.ONLCR, t.Oflag, unix.ONLCR}, {ssh.OCRNL, t.Oflag, unix.OCRNL},
		{ssh.ONOCR, t.Oflag, unix.ONOCR}, {ssh.ONLRET, t.Oflag, unix.ONLRET},
	} {
		mode(f.op, uint32(min(f.field&f.bit, 1)))
	}
	mode(ssh.TTY_OP_ISPEED, 38400)
	mode(ssh.TTY_OP_OSPEED, 38400)
	return append(b, end)
}

// escapes looks for the two things that ssh(1) lets a person say to it and not to the other side, after a newline: "~."
// ends the session, "~~" is one "~". Everything else goes through.
type escapes struct{ state byte }

const (
	escapeLine = iota // at the beginning of a line
	escapeText
	escapeTilde // after "~" at the beginning of a line
)

// filter returns what goes to the other side; end says that the person wants to leave.
func (e *escapes) filter(in []byte) (out []byte, end bool) {
	out = make([]byte, 0, len(in)+1)
	for _, c := range in {
		switch {
		case e.state == escapeLine && c == '~':
			e.state = escapeTilde
			continue
		case e.state == escapeTilde && c == '.':
			return out, true
		case e.state == escapeTilde && c != '~':
			out = append(out, '~')
		}
		out = append(out, c)
		e.state = escapeText
		if c == '\r' || c == '\n' {
			e.state = escapeLine
		}
	}
	return out, false
}
