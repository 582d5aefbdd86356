package rsh

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/internal/rfc4254"
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

func TestDecodeTerminal(t *testing.T) {
	for _, want := range []*terminal{
		nil,
		{},
		{Name: "xterm-256color", Size: rfc4254.Size{Columns: 80, Rows: 24, Width: 640, Height: 480},
			Modes: []byte{1, 0, 0, 0, 3, 0}},
		{Name: "a b", Size: rfc4254.Size{Columns: 65535, Height: 1}},
	} {
		got, err := decodeTerminal(want.encode())
		require.NoError(t, err)
		if want != nil && want.Modes == nil {
			want.Modes = []byte{}
		}
		require.Equal(t, want, got)
	}
	for _, bad := range []string{" ", "80 24 0 0", "80 24 0 x  xterm", "65536 24 0 0  xterm", "80 24 0 0 zz xterm",
		"-1 24 0 0 00 xterm"} {
		_, err := decodeTerminal(bad)
		require.Error(t, err, "%q", bad)
	}
}
