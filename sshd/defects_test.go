package sshd_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/paiinit/paiinit/sshd"
	"github.com/paiinit/paiinit/sshd/sshdtest"
)

// The tests of this file are for defects in the session code of gliderlabs/ssh and in servers built on it, which this
// package has to avoid.

func TestNoLoginWithoutKey(t *testing.T) {
	server := sshdtest.Start(t, sshd.Config{}, func(s *sshd.Server) { s.SetLogin(10 * time.Second) })
	for _, auth := range [][]ssh.AuthMethod{nil, {ssh.Password("")}, {ssh.PublicKeys()}} {
		config := server.ClientConfig()
		config.Auth = auth
		_, err := ssh.Dial("tcp", server.Addr.String(), config)
		require.ErrorContains(t, err, "unable to authenticate")
	}
	require.NotContains(t, server.Log.String(), `msg="ssh login"`)
}

// A refused key leaves nothing behind, such as its forced command.
func TestPermissionsOfARefusedKeyDoNotStay(t *testing.T) {
	restricted := sshdtest.Key(t)
	file := authorize(t, `from="10.0.0.0/8",restrict,command="echo forced" `, restricted, "restricted")
	server := sshdtest.Start(t, sshd.Config{AuthorizedKeys: file})
	config := server.ClientConfig()
	config.Auth = []ssh.AuthMethod{ssh.PublicKeys(restricted, server.User)}
	client, err := ssh.Dial("tcp", server.Addr.String(), config)
	require.NoError(t, err)
	defer func() { _ = client.Close() }()
	require.Equal(t, result{stdout: "free\n"}, run(t, client, "echo free", nil))
	server.Log.Wait(t, `msg="ssh login"`, "who=job")
}

func TestSignalsAtTheEndDoNotBlock(t *testing.T) {
	client := sshdtest.Start(t, sshd.Config{}).Dial(t)
	for range 50 {
		ch := open(t, client)
		require.True(t, ch.ask(t, "exec", text("trap '' USR1; exit 3")))
		var group sync.WaitGroup
		for range 4 {
			group.Go(func() {
				for range 50 {
					if _, err := ch.SendRequest("signal", false, text("CONT")); err != nil {
						return
					}
				}
			})
		}
		_, err := io.Copy(io.Discard, ch)
		require.NoError(t, err)
		status := <-ch.reqs
		require.NotNil(t, status)
		require.Equal(t, []byte{0, 0, 0, 3}, status.Payload)
		group.Wait()
		_ = ch.Close() // the server closed it
	}
}

func TestSilenceOfACommandIsNoReasonToEnd(t *testing.T) {
	t.Parallel()
	// The client answers keepalives, but on a busy machine an answer may be too late. A server that minds the silence
	// ends the command at every pace.
	var out []byte
	var err error
	for _, pace := range []time.Duration{1, 2, 4, 8} {
		server := sshdtest.Start(t, sshd.Config{}, func(s *sshd.Server) { s.SetKeepalive(pace * time.Second / 2) })
		var session *ssh.Session
		if session, err = server.Dial(t).NewSession(); err != nil {
			continue
		}
		out, err = session.Output(fmt.Sprintf("sleep %d; echo done; exit 4", 2*pace))
		if exit := (*ssh.ExitError)(nil); errors.As(err, &exit) && exit.ExitStatus() == 4 && string(out) == "done\n" {
			return
		}
	}
	t.Fatalf("%q, %v", out, err)
}

func TestTerminalAddsNothing(t *testing.T) {
	ch := open(t, sshdtest.Start(t, sshd.Config{}).Dial(t))
	require.True(t, ch.ask(t, "pty-req", ssh.Marshal(ptyRequest{"xterm", 80, 24, 0, 0, ""})))
	require.True(t, ch.ask(t, "exec", text(`stty raw -echo; printf '\000\n\001\r\n'`)))
	out, err := io.ReadAll(ch)
	require.NoError(t, err)
	require.Equal(t, "\x00\n\x01\r\n", string(out))
}

func TestForwardingIsNotServed(t *testing.T) {
	server := sshdtest.Start(t, sshd.Config{})
	client := server.Dial(t)
	_, err := client.Dial("tcp", server.Addr.String())
	require.ErrorContains(t, err, "not supported")
	_, err = client.Listen("tcp", "127.0.0.1:0")
	require.ErrorContains(t, err, "denied")
	server.Log.Wait(t, "ssh channel refused", "direct-tcpip")
	server.Log.Wait(t, "ssh forwarding refused", "tcpip-forward")
}

func TestSignalIsNotAStatus(t *testing.T) {
	ch := open(t, sshdtest.Start(t, sshd.Config{}).Dial(t))
	require.True(t, ch.ask(t, "exec", text("kill -9 $$")))
	req := <-ch.reqs
	require.Equal(t, "exit-signal", req.Type)
	require.True(t, strings.HasPrefix(string(req.Payload), string(text("KILL"))), "%q", req.Payload)
	for req := range ch.reqs {
		require.NotEqual(t, "exit-status", req.Type)
	}
}

func TestHostKeyIsOursAlone(t *testing.T) {
	server := sshdtest.Start(t, sshd.Config{})
	for _, algorithm := range []string{ssh.KeyAlgoRSASHA256, ssh.KeyAlgoECDSA256, ssh.KeyAlgoED25519} {
		config := server.ClientConfig()
		config.HostKeyAlgorithms = []string{algorithm}
		client, err := ssh.Dial("tcp", server.Addr.String(), config)
		if algorithm != ssh.KeyAlgoED25519 {
			require.ErrorContains(t, err, "no common algorithm for host key")
			continue
		}
		require.NoError(t, err)
		_ = client.Close() // only the login matters
	}
}

func TestNoAgentIsForwarded(t *testing.T) {
	tmp := t.TempDir()
	ch := open(t, sshdtest.Start(t, sshd.Config{Environ: []string{"PATH=/usr/bin:/bin", "TMPDIR=" + tmp}}).Dial(t))
	require.False(t, ch.ask(t, "auth-agent-req@openssh.com", nil))
	require.True(t, ch.ask(t, "exec", text(`echo "[$SSH_AUTH_SOCK]"; ls -A "$TMPDIR"; echo end`)))
	require.Equal(t, []string{"[]", "end"}, ch.lines(t, 2))
}

// If too many connections come from one address, the oldest are dropped, and one log line reports them.
func TestTooManyPendingConnections(t *testing.T) {
	server := sshdtest.Start(t, sshd.Config{}, func(s *sshd.Server) { s.SetPending(5, 100) })
	oldest := silent(t, server)
	for range 4 {
		silent(t, server)
	}
	require.Zero(t, run(t, server.Dial(t), "true", nil).status, "a sixth connection")
	closedByServer(t, oldest, testTimeout)
	server.Log.Wait(t, "level=WARN", "ssh connections dropped: too many without a login",
		"remote="+oldest.LocalAddr().String(), "count=1")
}

func TestPeersAreNeverTooMany(t *testing.T) {
	server := sshdtest.Start(t, sshd.Config{Known: func(netip.Addr) bool { return true }},
		func(s *sshd.Server) { s.SetPending(1, 1) })
	first := silent(t, server)
	for range 20 {
		server.Dial(t)
	}
	require.NoError(t, first.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
	_, err := io.Copy(io.Discard, first)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded, "the connection was closed")
	require.NotContains(t, server.Log.String(), "dropped")
}

// silent returns a connection that the server has accepted and that sends nothing.
func silent(t *testing.T, server *sshdtest.Server) net.Conn {
	t.Helper()
	nc, err := net.Dial("tcp", server.Addr.String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = nc.Close() })
	return nc
}

// Clients from outside that stop in the middle of the handshake block their places; peers have places of their own.
func TestPeersDoNotWaitForOthers(t *testing.T) {
	peer := netip.MustParseAddr("127.0.0.1")
	server := sshdtest.Start(t, sshd.Config{Known: func(a netip.Addr) bool { return a == peer }},
		func(s *sshd.Server) { s.SetHandshakes(1, 20*time.Second) })
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	for range 20 {
		nc, err := dialer.Dial("tcp", server.Addr.String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = nc.Close() })
		_, err = nc.Write([]byte("SSH-2.0-x\r\n"))
		require.NoError(t, err)
	}
	begin := time.Now()
	for range 5 {
		server.Dial(t)
	}
	require.Less(t, time.Since(begin), 15*time.Second)
	outsider, err := dialer.Dial("tcp", server.Addr.String())
	require.NoError(t, err)
	defer func() { _ = outsider.Close() }()
	config := server.ClientConfig()
	_ = outsider.SetDeadline(time.Now().Add(300 * time.Millisecond))
	_, _, _, err = ssh.NewClientConn(outsider, "", config)
	require.Error(t, err, "the others had the only place")
}

// FuzzConnection sends random bytes to the server before the login.
func FuzzConnection(f *testing.F) {
	f.Add([]byte("SSH-2.0-x\r\n"))
	f.Add([]byte("SSH-2.0-x\r\n\x00\x00\x00\x0c\x0a\x14"))
	f.Add([]byte("\r\n\r\nSSH-1.99-x\n\x00\x03\xff\xfc"))
	server := sshdtest.Start(f, sshd.Config{})
	f.Fuzz(func(t *testing.T, data []byte) {
		nc, err := net.Dial("tcp", server.Addr.String())
		require.NoError(t, err)
		defer func() { _ = nc.Close() }()
		_, _ = nc.Write(data) // the server may have closed it already
		_ = nc.(*net.TCPConn).CloseWrite()
		closedByServer(t, nc, 10*time.Second)
	})
	require.NotContains(f, server.Log.String(), "panic")
}
