package sshd

import (
	"fmt"
	"math"
	"os"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/internal/rawconn"
	"github.com/paiinit/paiinit/internal/rfc4254"
)

// openTerminal returns both ends of a new pseudo-terminal with the settings that the client requested.
func openTerminal(t terminal) (master, tty *os.File, err error) {
	master, tty, err = pty.Open()
	if err != nil {
		return nil, nil, fmt.Errorf("opening a terminal: %w", err)
	}
	// pty.Open leaves the master in blocking mode, which ignores deadlines.
	err = rawconn.Control(master, func(fd int) error { return unix.SetNonblock(fd, true) })
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
func resize(master *os.File, size rfc4254.Size) error {
	fit := func(n uint32) uint16 { return uint16(min(n, math.MaxUint16)) }
	return rawconn.Control(master, func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{
			Row: fit(size.Rows), Col: fit(size.Columns), Xpixel: fit(size.Width), Ypixel: fit(size.Height),
		})
	})
}

func setModes(tty *os.File, modes []rfc4254.Mode) error {
	return rawconn.Control(tty, func(fd int) error {
		t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		if err != nil {
			return err
		}
		rfc4254.ApplyModes(t, modes)
		return unix.IoctlSetTermios(fd, unix.TCSETS, t)
	})
}
