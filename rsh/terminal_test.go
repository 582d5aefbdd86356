package rsh

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"
)

func TestEscapes(t *testing.T) {
	for _, tt := range []struct {
		in, out string // "|" = the next read
		end     bool
	}{
		{"", "", false},
		{"ls -l\r", "ls -l\r", false},
		{"~.", "", true},
		{"~|.", "|", true},
		{"ls\r~.rest", "ls\r", true},
		{"ls\n~.", "ls\n", true},
		{"~~.", "~.", false},
		{"~~~", "~~", false},
		{"~a", "~a", false},
		{"~\r~.", "~\r", true},
		{"a~.", "a~.", false},
		{"cd ~|.", "cd ~|.", false},
		{"~|~", "|~", false},
	} {
		var e escapes
		var out []string
		end := false
		for in := range strings.SplitSeq(tt.in, "|") {
			require.False(t, end)
			var b []byte
			b, end = e.filter([]byte(in))
			out = append(out, string(b))
		}
		require.Equal(t, tt.out, strings.Join(out, "|"), "%q", tt.in)
		require.Equal(t, tt.end, end, "%q", tt.in)
	}
}

func TestEncodeModes(t *testing.T) {
	termios := unix.Termios{Iflag: unix.ICRNL, Oflag: unix.OPOST, Lflag: unix.ECHO | unix.ISIG}
	termios.Cc[unix.VINTR] = 3
	modes := encodeModes(&termios)
	got := map[byte]uint32{}
	for len(modes) > 1 {
		got[modes[0]] = uint32(modes[1])<<24 | uint32(modes[2])<<16 | uint32(modes[3])<<8 | uint32(modes[4])
		modes = modes[5:]
	}
	require.Equal(t, []byte{0}, modes)
	for op, want := range map[byte]uint32{
		ssh.VINTR: 3, ssh.VQUIT: 255, ssh.ICRNL: 1, ssh.IXON: 0, ssh.OPOST: 1, ssh.ONLCR: 0, ssh.ECHO: 1, ssh.ISIG: 1, ssh.ICANON: 0, ssh.TTY_OP_OSPEED: 38400,
	} {
		require.Equal(t, want, got[op], "mode %d", op)
	}
}

func TestDecodeTerminal(t *testing.T) {
	for _, want := range []*terminal{
		nil,
		{},
		{Name: "xterm-256color", Size: windowSize{80, 24, 640, 480}, Modes: []byte{1, 0, 0, 0, 3, 0}},
		{Name: "a b", Size: windowSize{65535, 0, 0, 1}},
	} {
		got, err := decodeTerminal(want.encode())
		require.NoError(t, err)
		if want != nil && want.Modes == nil {
			want.Modes = []byte{}
		}
		require.Equal(t, want, got)
	}
	for _, bad := range []string{" ", "80 24 0 0", "80 24 0 x  xterm", "65536 24 0 0  xterm", "80 24 0 0 zz xterm", "-1 24 0 0 00 xterm"} {
		_, err := decodeTerminal(bad)
		require.Error(t, err, "%q", bad)
	}
}
