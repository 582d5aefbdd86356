package sshd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"syscall"
	"unicode/utf8"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"
)

// The parsers of this file read bytes that a client chose. The packet limit of x/crypto/ssh (256 KiB) bounds them.

// parseCommand reads the payload of an "exec" request (RFC 4254 section 6.5). It refuses NUL, which would end the
// command early.
func parseCommand(payload []byte) (string, error) {
	var m struct{ Command string }
	if err := ssh.Unmarshal(payload, &m); err != nil {
		return "", fmt.Errorf("malformed exec request: %w", err)
	}
	if strings.IndexByte(m.Command, 0) >= 0 {
		return "", errors.New("malformed exec request: NUL in the command")
	}
	return m.Command, nil
}

// parseSubsystem reads the payload of a "subsystem" request (RFC 4254 section 6.5).
func parseSubsystem(payload []byte) (string, error) {
	var m struct{ Name string }
	if err := ssh.Unmarshal(payload, &m); err != nil {
		return "", fmt.Errorf("malformed subsystem request: %w", err)
	}
	return m.Name, nil
}

// parsePersonRequest reads the payload of a personRequest, which has the form of "subsystem": one name.
func parsePersonRequest(payload []byte) (string, error) {
	name, err := parseSubsystem(payload)
	if err != nil || name == "" || len(name) > 64 || !utf8.ValidString(name) {
		return "", errors.New("malformed person request")
	}
	return name, nil
}

// parseEnv reads the payload of an "env" request (RFC 4254 section 6.4). A shell must be able to assign the name.
func parseEnv(payload []byte) (name, value string, err error) {
	var m struct{ Name, Value string }
	if err := ssh.Unmarshal(payload, &m); err != nil {
		return "", "", fmt.Errorf("malformed env request: %w", err)
	}
	for i := range len(m.Name) {
		b := m.Name[i]
		letter := b == '_' || 'A' <= b && b <= 'Z' || 'a' <= b && b <= 'z'
		if !letter && (i == 0 || b < '0' || b > '9') {
			return "", "", fmt.Errorf("malformed env request: name %q", cut(m.Name, 40))
		}
	}
	if m.Name == "" {
		return "", "", errors.New("malformed env request: no name")
	}
	if strings.IndexByte(m.Value, 0) >= 0 {
		return "", "", errors.New("malformed env request: NUL in the value")
	}
	return m.Name, m.Value, nil
}

// acceptable says whether a client may set a variable: only language and terminal. Variables of loaders, shells and
// language runtimes (LD_PRELOAD, PATH, ENV, PYTHONSTARTUP) would let a client change what a command does.
func acceptable(name string) bool {
	return name == "LANG" || name == "TERM" || name == "COLORTERM" || strings.HasPrefix(name, "LC_")
}

// windowSize is the size of a terminal in characters and pixels. 0 is unknown.
type windowSize struct{ Columns, Rows, Width, Height uint16 }

func clamp(n uint32) uint16 { return uint16(min(n, math.MaxUint16)) }

// parseWindow reads the payload of a "window-change" request (RFC 4254 section 6.7).
func parseWindow(payload []byte) (windowSize, error) {
	var m struct{ Columns, Rows, Width, Height uint32 }
	if err := ssh.Unmarshal(payload, &m); err != nil {
		return windowSize{}, fmt.Errorf("malformed window-change request: %w", err)
	}
	return windowSize{clamp(m.Columns), clamp(m.Rows), clamp(m.Width), clamp(m.Height)}, nil
}

// terminal is the content of a "pty-req" request.
type terminal struct {
	Term  string
	Size  windowSize
	Modes []mode
}

// mode is one terminal mode of RFC 4254 section 8.
type mode struct {
	Op  uint8
	Arg uint32
}

// parseTerminal reads the payload of a "pty-req" request (RFC 4254 section 6.2 and 8).
func parseTerminal(payload []byte) (terminal, error) {
	var m struct {
		Term                         string
		Columns, Rows, Width, Height uint32
		Modes                        string
	}
	if err := ssh.Unmarshal(payload, &m); err != nil {
		return terminal{}, fmt.Errorf("malformed pty-req request: %w", err)
	}
	if len(m.Term) > 128 {
		return terminal{}, fmt.Errorf("malformed pty-req request: terminal type of %d bytes", len(m.Term))
	}
	for i := range len(m.Term) {
		if b := m.Term[i]; b <= ' ' || b > '~' || b == '/' {
			return terminal{}, fmt.Errorf("malformed pty-req request: terminal type %q", m.Term)
		}
	}
	t := terminal{Term: m.Term, Size: windowSize{clamp(m.Columns), clamp(m.Rows), clamp(m.Width), clamp(m.Height)}}
	const end, firstUnknown = 0, 160 // from here on the length of arguments is unknown, so parsing stops
	rest := []byte(m.Modes)
	for len(rest) > 0 && rest[0] != end && rest[0] < firstUnknown {
		if len(rest) < 5 {
			return terminal{}, errors.New("malformed pty-req request: terminal modes end within an argument")
		}
		t.Modes = append(t.Modes, mode{rest[0], binary.BigEndian.Uint32(rest[1:])})
		rest = rest[5:]
	}
	return t, nil
}

// parseSignal reads the payload of a "signal" request (RFC 4254 section 6.9): a name without "SIG". Names that the RFC
// does not list end with "@" and the name of their author.
func parseSignal(payload []byte) (syscall.Signal, error) {
	var m struct{ Name string }
	if err := ssh.Unmarshal(payload, &m); err != nil {
		return 0, fmt.Errorf("malformed signal request: %w", err)
	}
	name, _, _ := strings.Cut(m.Name, "@")
	if sig := unix.SignalNum("SIG" + name); sig != 0 {
		return sig, nil
	}
	return 0, fmt.Errorf("malformed signal request: unknown signal %q", cut(m.Name, 40))
}

// signalName returns the name of sig in an "exit-signal" request (RFC 4254 section 6.10).
func signalName(sig syscall.Signal) string {
	switch sig {
	case syscall.SIGABRT,
		syscall.SIGALRM,
		syscall.SIGFPE,
		syscall.SIGHUP,
		syscall.SIGILL,
		syscall.SIGINT,
		syscall.SIGKILL,
		syscall.SIGPIPE,
		syscall.SIGQUIT,
		syscall.SIGSEGV,
		syscall.SIGTERM,
		syscall.SIGUSR1,
		syscall.SIGUSR2:
		return strings.TrimPrefix(unix.SignalName(sig), "SIG")
	}
	if name := unix.SignalName(sig); name != "" {
		return strings.TrimPrefix(name, "SIG") + "@paiinit"
	}
	return fmt.Sprintf("%d@paiinit", int(sig))
}
