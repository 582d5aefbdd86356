package rfc4254

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"
)

func TestEncodeModes(t *testing.T) {
	termios := unix.Termios{Iflag: unix.ICRNL, Oflag: unix.OPOST, Lflag: unix.ECHO | unix.ISIG}
	termios.Cc[unix.VINTR] = 3
	modes := EncodeModes(&termios)
	got := map[byte]uint32{}
	for len(modes) > 1 {
		got[modes[0]] = uint32(modes[1])<<24 | uint32(modes[2])<<16 | uint32(modes[3])<<8 | uint32(modes[4])
		modes = modes[5:]
	}
	require.Equal(t, []byte{0}, modes)
	for op, want := range map[byte]uint32{
		ssh.VINTR: 3, ssh.VQUIT: 255, ssh.ICRNL: 1, ssh.IXON: 0, ssh.OPOST: 1, ssh.ONLCR: 0, ssh.ECHO: 1,
		ssh.ISIG: 1, ssh.ICANON: 0, ssh.TTY_OP_OSPEED: 38400,
	} {
		require.Equal(t, want, got[op], "mode %d", op)
	}
}

// A terminal that gets the modes of another one behaves alike, except for its character size.
func TestApplyModes(t *testing.T) {
	from := unix.Termios{Iflag: unix.ICRNL, Oflag: unix.OPOST, Lflag: unix.ECHO | unix.ISIG}
	from.Cc[unix.VINTR] = 3
	to := unix.Termios{Iflag: unix.IXON, Lflag: unix.ICANON, Cflag: unix.CS8 | unix.PARODD}
	to.Cc[unix.VINTR], to.Cc[unix.VQUIT] = 4, 28
	encoded := EncodeModes(&from)
	var modes []Mode
	for ; len(encoded) > 1; encoded = encoded[5:] {
		modes = append(modes, Mode{encoded[0], binary.BigEndian.Uint32(encoded[1:])})
	}
	ApplyModes(&to, modes)
	from.Cflag = unix.CS8 | unix.PARODD
	require.Equal(t, from, to)
	ApplyModes(&to, []Mode{{ssh.CS8, 0}, {ssh.CS7, 1}, {ssh.PARODD, 0}, {ssh.PARENB, 2}, {200, 1}})
	require.EqualValues(t, unix.CS7|unix.PARENB, to.Cflag)
	ApplyModes(&to, []Mode{{ssh.CS7, 0}})
	require.EqualValues(t, unix.CS7|unix.PARENB, to.Cflag, "no size is five bits")
}
