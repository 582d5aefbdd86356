package sshd

import (
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
)

func FuzzParseCommand(f *testing.F) {
	f.Add(ssh.Marshal(struct{ S string }{"true"}))
	f.Add([]byte{0, 0, 0, 9, 'x'})
	f.Fuzz(func(t *testing.T, payload []byte) {
		command, err := parseCommand(payload)
		if err == nil && (len(command) != len(payload)-4 || strings.Contains(command, "\x00")) {
			t.Fatalf("%q", command)
		}
	})
}

func FuzzParseEnv(f *testing.F) {
	f.Add(ssh.Marshal(struct{ N, V string }{"LANG", "C"}))
	f.Add(ssh.Marshal(struct{ N, V string }{"LD_PRELOAD\x00=\n", ""}))
	f.Fuzz(func(t *testing.T, payload []byte) {
		name, value, err := parseEnv(payload)
		if err == nil &&
			(name == "" || strings.ContainsAny(name, "=\x00\n ") || strings.Contains(value, "\x00") ||
				len(name)+len(value)+8 != len(payload)) {
			t.Fatalf("%q=%q", name, value)
		}
	})
}

func FuzzParseTerminal(f *testing.F) {
	type wire struct {
		Term       string
		C, R, W, H uint32
		Modes      string
	}
	f.Add(ssh.Marshal(wire{"xterm-256color", 80, 24, 800, 480, "\x35\x00\x00\x00\x01\x00"}))
	f.Add(ssh.Marshal(wire{"x", 1 << 31, 0, 0, 0, "\x35\x00"}))
	f.Fuzz(func(t *testing.T, payload []byte) {
		term, err := parseTerminal(payload)
		if err == nil &&
			(len(term.Term) > 128 || len(term.Modes)*5 > len(payload) || strings.ContainsAny(term.Term, "/\x00\n ")) {
			t.Fatalf("%+v", term)
		}
	})
}

func FuzzParseSignal(f *testing.F) {
	f.Add(ssh.Marshal(struct{ S string }{"TERM"}))
	f.Add(ssh.Marshal(struct{ S string }{"BUS@paiinit"}))
	f.Fuzz(func(t *testing.T, payload []byte) {
		if sig, err := parseSignal(payload); err == nil && (sig <= 0 || sig > 64) {
			t.Fatal(sig)
		}
	})
}

func FuzzParseWindow(f *testing.F) {
	f.Add(ssh.Marshal(struct{ C, R, W, H uint32 }{80, 24, 0, 70000}))
	f.Fuzz(func(t *testing.T, payload []byte) {
		if _, err := parseWindow(payload); err == nil && len(payload) != 16 {
			t.Fatal(payload)
		}
	})
}

func TestSignalNamesGoBothWays(t *testing.T) {
	for sig := syscall.Signal(1); sig < 32; sig++ {
		name := signalName(sig)
		got, err := parseSignal(ssh.Marshal(struct{ S string }{name}))
		require.NoError(t, err, name)
		require.Equal(t, sig, got, name)
	}
	require.Equal(t, "SEGV", signalName(syscall.SIGSEGV))
	require.Equal(t, "STOP@paiinit", signalName(syscall.SIGSTOP))
	require.Equal(t, "40@paiinit", signalName(40))
	_, err := parseSignal(ssh.Marshal(struct{ S string }{"9"}))
	require.Error(t, err)
}

func TestCut(t *testing.T) {
	require.Equal(t, "abc", cut("abc", 3))
	require.Equal(t, "ab... (4 bytes)", cut("ab\u00e9", 3), "no half characters")
}
