package sshd

import (
	"fmt"
	"os"

	"github.com/creack/pty"
	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"
)

// openTerminal returns both ends of a new pseudo-terminal with the settings that the client requested.
func openTerminal(t terminal) (master, tty *os.File, err error) {
	master, tty, err = pty.Open()
	if err != nil {
		return nil, nil, fmt.Errorf("opening a terminal: %w", err)
	}
	// pty.Open leaves the master in blocking mode, which ignores deadlines.
	err = control(master, func(fd int) error { return unix.SetNonblock(fd, true) })
	if err == nil {
		err = resize(master, t.Size)
	}
	if err == nil {
		err = setModes(tty, t.Modes)
	}
	if err != nil {
		_ = master.Close()
		_ = tty.Close()
		return nil, nil, fmt.Errorf("setting up a terminal: %w", err)
	}
	return master, tty, nil
}

// resize sets the terminal's size. The kernel sends WINCH to the foreground process group.
func resize(master *os.File, size windowSize) error {
	return control(master, func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ,
			&unix.Winsize{Row: size.Rows, Col: size.Columns, Xpixel: size.Width, Ypixel: size.Height})
	})
}

// control calls f with the descriptor of a file, which stays in non-blocking mode.
func control(file *os.File, f func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var ferr error
	if err := raw.Control(func(fd uintptr) { ferr = f(int(fd)) }); err != nil {
		return err
	}
	return ferr
}

// pendingBytes returns how much can be read from file without waiting.
func pendingBytes(file *os.File) int64 {
	var n int
	if control(file, func(fd int) (err error) { n, err = unix.IoctlGetInt(fd, unix.TIOCINQ); return err }) != nil {
		return 0
	}
	return int64(n)
}

// setModes applies the modes of RFC 4254 section 8 that Linux has, and ignores the others.
func setModes(tty *os.File, modes []mode) error {
	if len(modes) == 0 {
		return nil
	}
	return control(tty, func(fd int) error {
		t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		if err != nil {
			return err
		}
		for _, m := range modes {
			applyMode(t, m)
		}
		return unix.IoctlSetTermios(fd, unix.TCSETS, t)
	})
}

// applyMode applies one mode to t. It ignores line speeds, which a pseudo-terminal does not have.
func applyMode(t *unix.Termios, m mode) {
	if i := controlChar(m.Op); i >= 0 {
		t.Cc[i] = byte(m.Arg)
		if m.Arg == 255 { // means "none"
			t.Cc[i] = 0
		}
		return
	}
	field, mask, on := flag(t, m.Op)
	if field == nil {
		return
	}
	switch {
	case m.Arg != 0:
		*field = *field&^mask | on
	case mask == on: // clearing CS7 or CS8 would leave five bits
		*field &^= mask
	}
}

// controlChar returns the index of a control character in termios, or -1.
func controlChar(op uint8) int {
	switch op {
	case ssh.VINTR:
		return unix.VINTR
	case ssh.VQUIT:
		return unix.VQUIT
	case ssh.VERASE:
		return unix.VERASE
	case ssh.VKILL:
		return unix.VKILL
	case ssh.VEOF:
		return unix.VEOF
	case ssh.VEOL:
		return unix.VEOL
	case ssh.VEOL2:
		return unix.VEOL2
	case ssh.VSTART:
		return unix.VSTART
	case ssh.VSTOP:
		return unix.VSTOP
	case ssh.VSUSP:
		return unix.VSUSP
	case ssh.VREPRINT:
		return unix.VREPRINT
	case ssh.VWERASE:
		return unix.VWERASE
	case ssh.VLNEXT:
		return unix.VLNEXT
	case ssh.VDISCARD:
		return unix.VDISCARD
	}
	return -1
}

// flag returns the field of t that a mode is part of, its bits there, and the bits that switch it on. field is nil for
// a mode that Linux does not have.
func flag(t *unix.Termios, op uint8) (field *uint32, mask, on uint32) {
	input := func(bit uint32) (*uint32, uint32, uint32) { return &t.Iflag, bit, bit }
	local := func(bit uint32) (*uint32, uint32, uint32) { return &t.Lflag, bit, bit }
	output := func(bit uint32) (*uint32, uint32, uint32) { return &t.Oflag, bit, bit }
	line := func(bit uint32) (*uint32, uint32, uint32) { return &t.Cflag, bit, bit }
	switch op {
	case ssh.IGNPAR:
		return input(unix.IGNPAR)
	case ssh.PARMRK:
		return input(unix.PARMRK)
	case ssh.INPCK:
		return input(unix.INPCK)
	case ssh.ISTRIP:
		return input(unix.ISTRIP)
	case ssh.INLCR:
		return input(unix.INLCR)
	case ssh.IGNCR:
		return input(unix.IGNCR)
	case ssh.ICRNL:
		return input(unix.ICRNL)
	case ssh.IUCLC:
		return input(unix.IUCLC)
	case ssh.IXON:
		return input(unix.IXON)
	case ssh.IXANY:
		return input(unix.IXANY)
	case ssh.IXOFF:
		return input(unix.IXOFF)
	case ssh.IMAXBEL:
		return input(unix.IMAXBEL)
	case ssh.IUTF8:
		return input(unix.IUTF8)
	case ssh.ISIG:
		return local(unix.ISIG)
	case ssh.ICANON:
		return local(unix.ICANON)
	case ssh.XCASE:
		return local(unix.XCASE)
	case ssh.ECHO:
		return local(unix.ECHO)
	case ssh.ECHOE:
		return local(unix.ECHOE)
	case ssh.ECHOK:
		return local(unix.ECHOK)
	case ssh.ECHONL:
		return local(unix.ECHONL)
	case ssh.NOFLSH:
		return local(unix.NOFLSH)
	case ssh.TOSTOP:
		return local(unix.TOSTOP)
	case ssh.IEXTEN:
		return local(unix.IEXTEN)
	case ssh.ECHOCTL:
		return local(unix.ECHOCTL)
	case ssh.ECHOKE:
		return local(unix.ECHOKE)
	case ssh.PENDIN:
		return local(unix.PENDIN)
	case ssh.OPOST:
		return output(unix.OPOST)
	case ssh.OLCUC:
		return output(unix.OLCUC)
	case ssh.ONLCR:
		return output(unix.ONLCR)
	case ssh.OCRNL:
		return output(unix.OCRNL)
	case ssh.ONOCR:
		return output(unix.ONOCR)
	case ssh.ONLRET:
		return output(unix.ONLRET)
	case ssh.CS7:
		return &t.Cflag, unix.CSIZE, unix.CS7
	case ssh.CS8:
		return &t.Cflag, unix.CSIZE, unix.CS8
	case ssh.PARENB:
		return line(unix.PARENB)
	case ssh.PARODD:
		return line(unix.PARODD)
	}
	return nil, 0, 0
}
