package sshd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"unicode/utf8"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/internal/rfc4254"
)

// The parsers of this file read bytes that a client chose. The packet limit of x/crypto/ssh (256 KiB) bounds them. The
// sections are those of RFC 4254.

// parse reads the payload of a request into message.
func parse(request string, payload []byte, message any) error {
	if err := ssh.Unmarshal(payload, message); err != nil {
		return fmt.Errorf("malformed %s request: %w", request, err)
	}
	return nil
}

// parseText reads the payload of a request that has only one text, such as the name of a subsystem (6.5).
func parseText(request string, payload []byte) (string, error) {
	var m struct{ Text string }
	err := parse(request, payload, &m)
	return m.Text, err
}

// parseCommand reads the payload of an "exec" request (6.5). It refuses NUL, which would end the command early.
func parseCommand(payload []byte) (string, error) {
	command, err := parseText("exec", payload)
	if err == nil && strings.Contains(command, "\x00") {
		err = errors.New("malformed exec request: NUL in the command")
	}
	return command, err
}

// parsePersonRequest reads the payload of a personRequest, a name.
func parsePersonRequest(payload []byte) (string, error) {
	name, err := parseText(personRequest, payload)
	if err != nil || name == "" || len(name) > 64 || !utf8.ValidString(name) {
		return "", errors.New("malformed person request")
	}
	return name, nil
}

// parseEnv reads the payload of an "env" request (6.4). A shell must be able to assign the name.
func parseEnv(payload []byte) (name, value string, err error) {
	var m struct{ Name, Value string }
	if err := parse("env", payload, &m); err != nil {
		return "", "", err
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
	if strings.Contains(m.Value, "\x00") {
		return "", "", errors.New("malformed env request: NUL in the value")
	}
	return m.Name, m.Value, nil
}

// acceptable says whether a client may set a variable: only language and terminal. Variables of loaders, shells and
// language runtimes (LD_PRELOAD, PATH, ENV, PYTHONSTARTUP) would let a client change what a command does.
func acceptable(name string) bool {
	return name == "LANG" || name == "TERM" || name == "COLORTERM" || strings.HasPrefix(name, "LC_")
}

// parseWindow reads the payload of a "window-change" request (6.7).
func parseWindow(payload []byte) (size rfc4254.Size, err error) {
	err = parse("window-change", payload, &size)
	return size, err
}

// terminal is the content of a "pty-req" request.
type terminal struct {
	Term  string
	Size  rfc4254.Size
	Modes []rfc4254.Mode
}

// parseTerminal reads the payload of a "pty-req" request (6.2 and 8).
func parseTerminal(payload []byte) (t terminal, err error) {
	var m rfc4254.PTYRequest
	if err := parse("pty-req", payload, &m); err != nil {
		return t, err
	}
	if len(m.Term) > 128 {
		return t, fmt.Errorf("malformed pty-req request: terminal type of %d bytes", len(m.Term))
	}
	if strings.ContainsFunc(m.Term, func(r rune) bool { return r <= ' ' || r > '~' || r == '/' }) {
		return t, fmt.Errorf("malformed pty-req request: terminal type %q", m.Term)
	}
	t.Term, t.Size = m.Term, rfc4254.Size{Columns: m.Columns, Rows: m.Rows, Width: m.Width, Height: m.Height}
	const end, firstUnknown = 0, 160 // from here on the length of arguments is unknown, so parsing stops
	rest := []byte(m.Modes)
	for len(rest) > 0 && rest[0] != end && rest[0] < firstUnknown {
		if len(rest) < 5 {
			return t, errors.New("malformed pty-req request: terminal modes end within an argument")
		}
		t.Modes = append(t.Modes, rfc4254.Mode{Op: rest[0], Arg: binary.BigEndian.Uint32(rest[1:])})
		rest = rest[5:]
	}
	return t, nil
}

// parseSignal reads the payload of a "signal" request (6.9): a name without "SIG". Names that the RFC does not list end
// with "@" and the name of their author.
func parseSignal(payload []byte) (syscall.Signal, error) {
	text, err := parseText("signal", payload)
	if err != nil {
		return 0, err
	}
	name, _, _ := strings.Cut(text, "@")
	if sig := unix.SignalNum("SIG" + name); sig != 0 {
		return sig, nil
	}
	return 0, fmt.Errorf("malformed signal request: unknown signal %q", cut(text, 40))
}

// signalName returns the name of sig in an "exit-signal" request (6.10).
func signalName(sig syscall.Signal) string {
	if name := rfc4254.SignalName(sig); name != "" {
		return name
	}
	if name, ok := strings.CutPrefix(unix.SignalName(sig), "SIG"); ok {
		return name + "@paiinit"
	}
	return fmt.Sprintf("%d@paiinit", int(sig))
}
