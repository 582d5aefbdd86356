package rsh

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/internal/rawconn"
	"github.com/paiinit/paiinit/internal/rfc4254"
)

// terminal describes the terminal that a command gets.
type terminal struct {
	Name  string // its type, as in TERM; "" = unknown
	Size  rfc4254.Size
	Modes []byte // in the encoding of RFC 4254, 8; nil = the peer's own
}

// encode returns the field of a request to the agent: "" for no terminal, else size, modes and name, separated by
// spaces.
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
		return nil, fmt.Errorf("reading the terminal %q: expected 6 fields", text)
	}
	t := &terminal{Name: fields[5]}
	for i, to := range []*uint32{&t.Size.Columns, &t.Size.Rows, &t.Size.Width, &t.Size.Height} {
		n, err := strconv.ParseUint(fields[i], 10, 16)
		if err != nil {
			return nil, fmt.Errorf("reading the size of the terminal: %w", err)
		}
		*to = uint32(n)
	}
	var err error
	if t.Modes, err = hex.DecodeString(fields[4]); err != nil {
		return nil, fmt.Errorf("reading the modes of the terminal: %w", err)
	}
	return t, nil
}

// encodeSize returns the content of a frame.Resize.
func encodeSize(s rfc4254.Size) (b []byte) {
	for _, n := range []uint32{s.Columns, s.Rows, s.Width, s.Height} {
		b = binary.BigEndian.AppendUint16(b, uint16(n))
	}
	return b
}

func decodeSize(b []byte) (s rfc4254.Size, ok bool) {
	if len(b) != 8 {
		return s, false
	}
	for i, to := range []*uint32{&s.Columns, &s.Rows, &s.Width, &s.Height} {
		*to = uint32(binary.BigEndian.Uint16(b[2*i:]))
	}
	return s, true
}

func isTerminal(file *os.File) bool {
	return rawconn.Control(file, func(fd int) error {
		_, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		return err
	}) == nil
}

func (k *keyboard) size() (size rfc4254.Size) {
	_ = rawconn.Control(k.file, func(fd int) error { // on failure the size stays unknown
		w, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
		if err == nil {
			size = rfc4254.Size{
				Columns: uint32(w.Col), Rows: uint32(w.Row), Width: uint32(w.Xpixel), Height: uint32(w.Ypixel),
			}
		}
		return err
	})
	return size
}

// raw passes every key to the remote command: the local terminal no longer echoes, edits, or turns keys into signals.
// It returns the previous modes, which the remote terminal should have.
func (k *keyboard) raw() (modes []byte, err error) {
	err = rawconn.Control(k.file, func(fd int) error {
		t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		if err != nil {
			return err
		}
		saved := *t
		t.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP |
			unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON | unix.IXANY | unix.IXOFF
		t.Oflag &^= unix.OPOST
		t.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
		t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 1, 0
		if err := unix.IoctlSetTermios(fd, unix.TCSETSW, t); err != nil {
			return err
		}
		k.saved, modes = &saved, rfc4254.EncodeModes(&saved)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("setting up the terminal: %w", err)
	}
	return modes, nil
}

// escapes recognises two escapes of ssh(1) after a newline: "~." ends the session, "~~" sends one "~". All other bytes
// go through.
type escapes struct{ state byte }

const (
	escapeLine = iota // at the beginning of a line
	escapeText
	escapeTilde // after "~" at the beginning of a line
)

// filter returns the bytes for the remote command; end reports "~.", which ends the session.
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
