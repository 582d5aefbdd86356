package sshd_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pkg/sftp"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/paiinit/paiinit/sshd"
	"github.com/paiinit/paiinit/sshd/sshdtest"
)

// authorize writes a file with one line and returns its name. options end with a space.
func authorize(t *testing.T, options string, key ssh.Signer, comment string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "authorized_keys")
	line := options + strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key.PublicKey()))) + " " + comment + "\n"
	require.NoError(t, os.WriteFile(file, []byte(line), 0o600))
	return file
}

// dialAs logs in with a key outside of the job.
func dialAs(t *testing.T, server *sshdtest.Server, user string, key ssh.Signer) (*ssh.Client, error) {
	t.Helper()
	config := server.ClientConfig()
	config.User, config.Auth = user, []ssh.AuthMethod{ssh.PublicKeys(key)}
	client, err := ssh.Dial("tcp", server.Addr.String(), config)
	if err == nil {
		t.Cleanup(func() { _ = client.Close() })
	}
	return client, err
}

func mustDialAs(t *testing.T, server *sshdtest.Server, key ssh.Signer) *ssh.Client {
	t.Helper()
	client, err := dialAs(t, server, "root", key)
	require.NoError(t, err)
	return client
}

func TestPersonGetsCommandsAndNoChannelsOfTheJob(t *testing.T) {
	key := sshdtest.Key(t)
	called := make(chan net.Addr, 2)
	cfg := sshd.Config{
		AuthorizedKeys: authorize(t, "", key, "alice@laptop"),
		Channels: map[string]func(context.Context, io.ReadWriteCloser, net.Addr){
			"control@paiinit": func(_ context.Context, ch io.ReadWriteCloser, remote net.Addr) {
				called <- remote
				_ = ch.Close()
			},
		},
	}
	told := events(&cfg)
	server := sshdtest.Start(t, cfg)
	client := mustDialAs(t, server, key)
	line := server.Log.Wait(t, `msg="ssh login"`, "who=alice@laptop", "key="+ssh.FingerprintSHA256(key.PublicKey()),
		"user=root", "remote=127.0.0.1")
	require.Contains(t, line, "level=INFO")
	require.Equal(t, result{stdout: "hello\n", status: 4}, run(t, client, "echo hello; exit 4", nil))
	require.Equal(t, "alice@laptop", (<-told).Person)
	server.Log.Wait(t, `msg="ssh command"`, "who=alice@laptop", `command="echo hello; exit 4"`, "status=4")

	_, _, err := client.OpenChannel("control@paiinit", nil)
	require.ErrorContains(t, err, "not supported")
	server.Log.Wait(t, `msg="ssh channel refused"`, "who=alice@laptop", "type=control@paiinit")
	require.Empty(t, called)
	ch, _, err := server.Dial(t).OpenChannel("control@paiinit", nil)
	require.NoError(t, err)
	<-called
	_ = ch.Close() // the other side closes it as well
	server.Log.Wait(t, `msg="ssh login"`, "who=job")
}

// Only a rank may name the person who asks.
func TestARankNamesAPerson(t *testing.T) {
	key := sshdtest.Key(t)
	cfg := sshd.Config{AuthorizedKeys: authorize(t, "", key, "bob")}
	told := events(&cfg)
	server := sshdtest.Start(t, cfg)
	ch := open(t, server.Dial(t))
	for _, bad := range []string{"", strings.Repeat("x", 65), "\xff"} {
		require.False(t, ch.ask(t, "person@paiinit", text(bad)), "%q", bad)
	}
	require.False(t, ch.ask(t, "person@paiinit", []byte{0, 0, 0, 9}))
	require.True(t, ch.ask(t, "person@paiinit", text("alice@laptop")))
	require.True(t, ch.ask(t, "exec", text("read line; echo on")))
	require.False(t, ch.ask(t, "person@paiinit", text("carol")))
	_, err := ch.Write([]byte("\n"))
	require.NoError(t, err)
	require.Equal(t, []string{"on"}, ch.lines(t, 1))
	require.Equal(t, "alice@laptop", (<-told).Person)
	line := server.Log.Wait(t, `msg="ssh command"`, "who=job", "for=alice@laptop", `command="read line; echo on"`)
	require.Contains(t, line, "level=INFO")

	ch = open(t, mustDialAs(t, server, key))
	require.False(t, ch.ask(t, "person@paiinit", text("alice@laptop")))
	server.Log.Wait(t, "ssh request refused", "who=bob", `reason="only a rank may name a person, before its command"`)
}

func TestPersonWithoutTerminal(t *testing.T) {
	for options, want := range map[string]bool{"": true, "no-pty ": false, "restrict ": false, "restrict,pty ": true} {
		key := sshdtest.Key(t)
		server := sshdtest.Start(t, sshd.Config{AuthorizedKeys: authorize(t, options, key, "bob")})
		ch := open(t, mustDialAs(t, server, key))
		require.Equal(t, want, ch.ask(t, "pty-req", ssh.Marshal(ptyRequest{"xterm", 80, 24, 0, 0, ""})), options)
		if !want {
			server.Log.Wait(t, "ssh request refused", "who=bob", `reason="no terminal for this key"`)
			require.True(t, ch.ask(t, "exec", text("echo on")))
			require.Equal(t, []string{"on"}, ch.lines(t, 1))
		}
	}
}

func TestForcedCommand(t *testing.T) {
	key := sshdtest.Key(t)
	cfg := sshd.Config{
		AuthorizedKeys: authorize(t, `command="echo \"forced: $SSH_ORIGINAL_COMMAND\"; read x" `, key, "cron"),
		SFTP:           sftpProgram(),
	}
	told := events(&cfg)
	server := sshdtest.Start(t, cfg)
	client := mustDialAs(t, server, key)
	in := func() io.Reader { return strings.NewReader("x\n") }
	require.Equal(t, result{stdout: "forced: rm -rf /\n"}, run(t, client, "rm -rf /", in()))
	event := <-told
	require.Equal(t, `echo "forced: $SSH_ORIGINAL_COMMAND"; read x`, event.Command)
	server.Log.Wait(t, "ssh command", "who=cron", `asked="rm -rf /"`, "status=0")

	for kind, original := range map[string]string{"shell": "", "subsystem": "internal-sftp"} {
		ch := open(t, client)
		payload := text("sftp")
		if kind == "shell" {
			payload = nil
		}
		require.True(t, ch.ask(t, kind, payload))
		require.Equal(t, []string{"forced: " + original}, ch.lines(t, 1))
		require.False(t, ch.ask(t, "signal", text("KILL")), "not the client's to signal")
		_, err := ch.Write([]byte("\n"))
		require.NoError(t, err)
		req := <-ch.reqs
		require.Equal(t, []byte{0, 0, 0, 0}, req.Payload)
	}
}

// sftpClient starts the subsystem and a client for it.
func sftpClient(t *testing.T, client *ssh.Client) *sftp.Client {
	t.Helper()
	c, err := sftp.NewClient(client)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestSFTP(t *testing.T) {
	home := t.TempDir()
	cfg := sshd.Config{SFTP: sftpProgram(), Environ: []string{"HOME=" + home, "PATH=/usr/bin:/bin"}}
	told := events(&cfg)
	server := sshdtest.Start(t, cfg)
	client := server.Dial(t)
	c := sftpClient(t, client)
	dir, err := c.Getwd()
	require.NoError(t, err)
	require.Equal(t, home, dir)
	data := make([]byte, 5<<20+7)
	_, _ = rand.Read(data)
	f, err := c.Create("sub")
	require.NoError(t, err)
	_, err = f.ReadFrom(bytes.NewReader(data))
	require.NoError(t, err)
	require.NoError(t, f.Close())
	got, err := os.ReadFile(filepath.Join(home, "sub"))
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, got))
	f, err = c.Open("sub")
	require.NoError(t, err)
	var back bytes.Buffer
	_, err = f.WriteTo(&back)
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, back.Bytes()))
	require.NoError(t, f.Close())
	_, err = c.Open("missing")
	require.ErrorIs(t, err, os.ErrNotExist)
	start := <-told
	require.True(t, start.SFTP)
	require.True(t, alive(start.PID))
	require.NoError(t, c.Close())
	end := <-told
	require.Zero(t, end.Status)
	server.Log.Wait(t, "ssh command", "subsystem=sftp", "status=0")

	// If the client disconnects, its SFTP server ends.
	again := sftpClient(t, client)
	_, err = again.Getwd()
	require.NoError(t, err)
	start = <-told
	require.NoError(t, client.Close())
	gone(t, start.PID)
}

func TestForcedSFTPAndNoSFTP(t *testing.T) {
	key := sshdtest.Key(t)
	file := authorize(t, `restrict,command="internal-sftp" `, key, "copier")
	server := sshdtest.Start(t, sshd.Config{AuthorizedKeys: file, SFTP: sftpProgram()})
	client := mustDialAs(t, server, key)
	_, err := sftpClient(t, client).Stat("/")
	require.NoError(t, err)
	ch := open(t, client)
	require.True(t, ch.ask(t, "exec", text("id")), "it is sftp that runs")
	require.NoError(t, ch.CloseWrite())
	out, err := io.ReadAll(ch)
	require.NoError(t, err)
	require.Empty(t, out)

	without := sshdtest.Start(t, sshd.Config{AuthorizedKeys: file})
	require.False(t, open(t, mustDialAs(t, without, key)).ask(t, "exec", text("id")))
}

// Invalid SFTP packets can only harm the client's own process.
func TestSFTPGarbage(t *testing.T) {
	cfg := sshd.Config{SFTP: sftpProgram()}
	told := events(&cfg)
	client := sshdtest.Start(t, cfg).Dial(t)
	for _, data := range [][]byte{
		{0xff, 0xff, 0xff, 0xff}, {0, 0, 0, 0}, {0, 0, 0, 1, 99}, bytes.Repeat([]byte("x"), 1<<20),
	} {
		ch := open(t, client)
		require.True(t, ch.ask(t, "subsystem", text("sftp")))
		_, _ = ch.Write(data) // the process may end before the last byte
		_ = ch.CloseWrite()
		_, _ = io.Copy(io.Discard, ch)
		<-told
		require.True(t, (<-told).Done)
	}
	require.Zero(t, run(t, client, "true", nil).status)
}

// All logins are refused. Each refusal is one line with login name, address, key and reason.
func TestRefusalsAreLogged(t *testing.T) {
	alice, unknown := sshdtest.Key(t), sshdtest.Key(t)
	for name, row := range map[string]struct {
		options, user string
		key           ssh.Signer // nil: none
		reason        string
		skipped       string
	}{
		"none":        {"", "root", nil, "no key was offered", ""},
		"another key": {"", "root", unknown, "the key is not authorized", ""},
		"not proven": {
			"", "root", wrongPrivate{unknown, alice.PublicKey()}, "the key is authorized, but no signature proved it",
			"",
		},
		"wrong name": {"", "nobody", alice, "the login name does not belong to this container's user", ""},
		"expired": {
			`expiry-time="20200101Z" `, "root", alice, "the key of alice expired at 2020-01-01T00:00:00Z", "",
		},
		"elsewhere":       {`from="10.0.0.0/8" `, "root", alice, "the key of alice may not be used from 127.0.0.1", ""},
		"not from here":   {`from="*,!127.*" `, "root", alice, "the key of alice may not be used from 127.0.0.1", ""},
		"unknown option":  {`environment="A=1" `, "root", alice, "the key is not authorized", "is not supported"},
		"an authority":    {`cert-authority `, "root", alice, "the key is not authorized", "is not supported"},
		"a name, in from": {`from="*.example.com" `, "root", alice, "the key is not authorized", "is not an address"},
	} {
		t.Run(name, func(t *testing.T) {
			server := sshdtest.Start(t, sshd.Config{AuthorizedKeys: authorize(t, row.options, alice, "alice")})
			config := server.ClientConfig()
			config.User, config.Auth = row.user, nil
			if row.key != nil {
				config.Auth = []ssh.AuthMethod{ssh.PublicKeys(row.key)}
			}
			_, err := ssh.Dial("tcp", server.Addr.String(), config)
			require.Error(t, err)
			line := server.Log.Wait(t, "ssh login refused", fmt.Sprintf("reason=%q", row.reason), "user="+row.user,
				"remote=127.0.0.1", "level=WARN")
			if row.key != nil {
				require.Contains(t, line, ssh.FingerprintSHA256(row.key.PublicKey()))
			}
			require.Equal(t, 1, strings.Count(server.Log.String(), "refused"))
			require.NotContains(t, server.Log.String(), `msg="ssh login"`)
			if row.skipped != "" {
				server.Log.Wait(t, "ssh authorized key skipped", "line=1", row.skipped)
			}
		})
	}
}

func TestAuthorizedKeysThatCannotBeReadAreSaidAtOnce(t *testing.T) {
	_, err := sshd.New(sshd.Config{HostKey: sshdtest.Key(t), AuthorizedKeys: t.TempDir() + "/no"})
	require.ErrorContains(t, err, "creating the SSH server: reading the keys of people: stat ")
	key := sshdtest.Key(t)
	file := authorize(t, "", key, "x")
	require.NoError(t, os.Chmod(file, 0o620))
	_, err = sshd.New(sshd.Config{HostKey: key, AuthorizedKeys: file})
	require.ErrorContains(t, err, "is writable by its group or by others (mode 0620)")
}

// A key that was removed from the file cannot log in again. Its open connections stay.
func TestKeyTakenOut(t *testing.T) {
	key := sshdtest.Key(t)
	file := authorize(t, "", key, "x")
	server := sshdtest.Start(t, sshd.Config{AuthorizedKeys: file})
	client := mustDialAs(t, server, key)
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err := dialAs(t, server, "root", key)
	require.ErrorContains(t, err, "unable to authenticate")
	require.Zero(t, run(t, client, "true", nil).status)
	require.NoError(t, server.SelfCheck(soon(t, 10*time.Second)))
}

// FuzzSFTP sends random packets to the SFTP server, without names outside of its directory, whose files it could
// change.
func FuzzSFTP(f *testing.F) {
	packet := func(kind byte, fields ...any) []byte {
		body := []byte{kind}
		for _, field := range fields {
			switch v := field.(type) {
			case uint32:
				body = binary.BigEndian.AppendUint32(body, v)
			case uint64:
				body = binary.BigEndian.AppendUint64(body, v)
			case string:
				body = append(binary.BigEndian.AppendUint32(body, uint32(len(v))), v...)
			}
		}
		return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
	}
	hello := packet(1, uint32(3))
	f.Add(
		bytes.Join(
			[][]byte{
				hello,
				packet(3, uint32(1), "a", uint32(0x1a), uint32(0)),
				packet(6, uint32(2), "1", uint64(3), "data"),
				packet(5, uint32(3), "1", uint64(0), uint32(1<<31)),
				packet(4, uint32(4), "1"),
			},
			nil,
		),
	)
	f.Add(
		bytes.Join(
			[][]byte{
				hello,
				packet(11, uint32(1), "."),
				packet(12, uint32(2), "1"),
				packet(16, uint32(3), "."),
				packet(17, uint32(4), "a"),
			},
			nil,
		),
	)
	f.Add(
		bytes.Join(
			[][]byte{
				hello,
				packet(14, uint32(1), "d", uint32(4), uint32(0o755)),
				packet(18, uint32(2), "d", "e"),
				packet(15, uint32(3), "e"),
				packet(13, uint32(4), "no"),
			},
			nil,
		),
	)
	f.Add(
		bytes.Join(
			[][]byte{
				hello,
				packet(200, uint32(1), "posix-rename@openssh.com", "a", "b"),
				packet(200, uint32(2), "statvfs@openssh.com", "."),
				packet(20, uint32(3), "a", "b"),
				packet(19, uint32(4), "b"),
			},
			nil,
		),
	)
	f.Add(
		bytes.Join(
			[][]byte{
				hello,
				packet(9, uint32(1), "a", uint32(0xf), uint64(7), uint32(0), uint32(0), uint32(0o600), uint32(1),
					uint32(1)),
				packet(10, uint32(2), "1", uint32(1<<31), uint32(1<<30)),
			},
			nil,
		),
	)
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		if bytes.Contains(data, []byte("/")) || bytes.Contains(data, []byte("..")) {
			return // it may name another directory
		}
		dir := t.TempDir()
		defer func() { _ = os.Chmod(dir, 0o700) }() // it may not exist
		var out answers
		_ = sshd.ServeSFTPIn(dir, bytes.NewReader(data), &out) // an error ends it
		// Its output consists of packets. The last may be incomplete, because the client ended before it got the
		// answers.
		for rest := out.all(); len(rest) >= 5; {
			n := int(binary.BigEndian.Uint32(rest))
			require.Positive(t, n)
			rest = rest[min(4+n, len(rest)):]
		}
	})
}

// answers collects the output of an SFTP server.
type answers struct {
	mu   sync.Mutex
	data []byte
}

func (a *answers) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.data = append(a.data, p...)
	return len(p), nil
}

func (a *answers) all() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.data)
}

func (a *answers) Close() error { return nil }

// FuzzSession sends requests in any order on a session after the login. Of each, the first byte is its kind, the second
// the length of its payload.
func FuzzSession(f *testing.F) {
	kinds := []string{
		"exec",
		"shell",
		"subsystem",
		"pty-req",
		"env",
		"signal",
		"window-change",
		"auth-agent-req@openssh.com",
		"x11-req",
		"keepalive@openssh.com",
		"eow@openssh.com",
		"",
		"break",
	}
	one := func(kind string, payload []byte) []byte {
		return append([]byte{byte(slices.Index(kinds, kind)), byte(len(payload))}, payload...)
	}
	f.Add(
		slices.Concat(one("env", ssh.Marshal(struct{ N, V string }{"LANG", "C"})),
			one("pty-req", ssh.Marshal(ptyRequest{"xterm", 80, 24, 0, 0, ""})), one("exec", text("true"))),
	)
	f.Add(
		slices.Concat(one("signal", text("TERM")), one("exec", text("true")), one("window-change", make([]byte, 16)),
			one("exec", text("true"))),
	)
	f.Add(
		slices.Concat(one("shell", nil), one("subsystem", text("sftp")), one("break", []byte{0, 0, 0, 1}),
			one("exec", []byte{0, 0, 0, 9, 'x'})),
	)
	// The shell does nothing, for any command. A panic would end the connection.
	server := sshdtest.Start(f, sshd.Config{
		Shell:   "/bin/true",
		Environ: []string{"SHELL=/bin/true", "PATH=/usr/bin:/bin"},
		SFTP:    []string{"/bin/true"},
		Logger:  slog.New(slog.DiscardHandler),
	})
	client, err := ssh.Dial("tcp", server.Addr.String(), server.ClientConfig())
	require.NoError(f, err)
	f.Cleanup(func() { _ = client.Close() })
	f.Fuzz(func(t *testing.T, data []byte) {
		ch, reqs, err := client.OpenChannel("session", nil)
		require.NoError(t, err)
		ended := make(chan struct{})
		go func() { ssh.DiscardRequests(reqs); close(ended) }()
		for len(data) > 1 {
			kind, n := kinds[int(data[0])%len(kinds)], min(int(data[1]), len(data)-2)
			if _, err := ch.SendRequest(kind, true, data[2:2+n]); err != nil {
				break // the session ended
			}
			data = data[2+n:]
		}
		_ = ch.Close()
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			t.Fatal("the session does not end")
		}
	})
}

// A client that tries again and again is one line. So is each other reason of refusals, and garbage on the port.
func TestRepeatedRefusalsAreOneLine(t *testing.T) {
	server := sshdtest.Start(t, sshd.Config{})
	refused := func(user string, key ssh.Signer) {
		config := server.ClientConfig()
		config.User, config.Auth = user, nil
		if key != nil {
			config.Auth = []ssh.AuthMethod{ssh.PublicKeys(key)}
		}
		_, err := ssh.Dial("tcp", server.Addr.String(), config)
		require.ErrorContains(t, err, "unable to authenticate")
	}
	for i := range 31 {
		refused(fmt.Sprint("user", i), sshdtest.Key(t))
	}
	require.Eventually(t, func() bool { return strings.Count(server.Log.String(), "ssh login refused") == 31 },
		testTimeout, time.Millisecond)
	require.Equal(t, 1, strings.Count(server.Log.String(), "level=WARN"))
	for range 5 {
		refused("root", nil)
		nc, err := net.Dial("tcp", server.Addr.String())
		require.NoError(t, err)
		_, err = nc.Write([]byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"))
		require.NoError(t, err)
		_, _ = io.Copy(io.Discard, nc)
		require.NoError(t, nc.Close())
	}
	refused("root", nil)
	server.Log.Wait(t, "level=WARN", "ssh login refused", "user=user", "the key is not authorized")
	server.Log.Wait(t, "level=WARN", "ssh login refused", "user=root", "no key was offered")
	require.Eventually(t, func() bool { return strings.Count(server.Log.String(), "ssh login refused") == 31+11 },
		testTimeout, time.Millisecond)
	server.Log.Wait(t, "level=WARN", "ssh login refused", "a packet of 1215263604 bytes")
	require.Equal(t, 3, strings.Count(server.Log.String(), "level=WARN"))
}
