// Command plain is a remote shell over bare TCP, without encryption, login, terminal and signals. The benchmark of
// launchers compares it with paiinit's, to show what these cost.
//
//	plain serve                      runs commands for any client
//	plain [OPTION...] HOST WORD...   is the remote shell
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
)

const port = "12399"

// Kinds of messages from the server. A message is a byte for its kind, four bytes for the length, and the content.
const (
	stdout = 1 + iota
	stderr
	status // one byte
)

func main() {
	code, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintf(os.Stderr, "plain: %v\n", err)
		code = 255
	}
	os.Exit(code)
}

func run(args []string) (int, error) {
	if len(args) == 1 && args[0] == "serve" {
		return 0, serve()
	}
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		args = args[1:]
	}
	if len(args) < 2 {
		return 0, errors.New("usage: plain serve | [OPTION]... HOST COMMAND")
	}
	return ask(args[0], strings.Join(args[1:], " "))
}

// ask has the server run a command, and returns the command's status.
func ask(host, command string) (int, error) {
	conn, err := net.Dial("tcp", net.JoinHostPort(host, port))
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	if err := send(conn, 0, []byte(command)); err != nil {
		return 0, err
	}
	for {
		kind, content, err := receive(conn)
		switch {
		case err != nil:
			return 0, err
		case kind == stdout:
			_, err = os.Stdout.Write(content)
		case kind == stderr:
			_, err = os.Stderr.Write(content)
		case kind == status && len(content) == 1:
			return int(content[0]), nil
		default:
			err = fmt.Errorf("unknown message %d", kind)
		}
		if err != nil {
			return 0, err
		}
	}
}

func serve() error {
	ln, err := net.Listen("tcp", ":"+port)
	if err != nil {
		return err
	}
	for {
		conn, err := ln.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer func() { _ = conn.Close() }()
			if err := answer(conn); err != nil {
				fmt.Fprintf(os.Stderr, "plain: %v\n", err)
			}
		}()
	}
}

// answer runs one command and kills it when the connection closes.
func answer(conn net.Conn) error {
	_, command, err := receive(conn)
	if err != nil {
		return err
	}
	var out sync.Mutex
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", string(command))
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Dir = "/root"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Stdout, cmd.Stderr = stream{conn, &out, stdout}, stream{conn, &out, stderr}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, conn) // the client sends no more: this returns when it hangs up
		cancel()
	}()
	_ = cmd.Wait() // the client gets the status
	return send(conn, status, []byte{byte(cmd.ProcessState.ExitCode())})
}

// stream sends each write as a message of one kind.
type stream struct {
	conn net.Conn
	mu   *sync.Mutex // shared by all kinds
	kind byte
}

func (s stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(p), send(s.conn, s.kind, p)
}

func send(w io.Writer, kind byte, content []byte) error {
	_, err := w.Write(append(binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(content))), content...))
	return err
}

func receive(r io.Reader) (kind byte, content []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	content = make([]byte, binary.BigEndian.Uint32(head[1:]))
	_, err = io.ReadFull(r, content)
	return head[0], content, err
}
