package sshd_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/paiinit/paiinit/internal/proc"
	"github.com/paiinit/paiinit/sshd"
	"github.com/paiinit/paiinit/sshd/sshdtest"
)

// family starts one process of each kind and prints their numbers: the leader, a child in its group, a child in a group
// of its own, a child that ignores HUP and TERM, and a child that left by setsid, which the end of the test kills.
const family = `
echo $$
sleep 1001 & echo $!
bash -c 'set -m; sleep 1002 & echo $!; wait' &
(trap "" HUP TERM; echo $(exec sh -c 'echo $PPID'); while :; do sleep 0.05; done) &
setsid sh -c 'echo $$; exec sleep 1003 </dev/null >/dev/null 2>&1' &
`

func startFamily(t *testing.T, ch channel, first, then string) (session []int, left int) {
	t.Helper()
	require.True(t, ch.ask(t, "exec", text(first+family+then)))
	pids := ch.pids(t, 5)
	groups := map[int]bool{}
	for _, pid := range pids { // the last three may come in any order
		p, err := proc.Read(os.DirFS("/proc"), pid)
		require.NoError(t, err)
		if p.Session == pids[0] {
			session = append(session, pid)
			groups[p.Group] = true
		} else {
			left = pid
		}
	}
	require.Len(t, session, 4)
	require.Len(t, groups, 2)
	killAtEnd(t, left)
	return session, left
}

func TestConnectionLostEndsTheWholeSession(t *testing.T) {
	cfg := sshd.Config{Grace: 50 * time.Millisecond}
	told := events(&cfg)
	server := sshdtest.Start(t, cfg)
	client := server.Dial(t)
	session, left := startFamily(t, open(t, client), "", "wait")
	require.NoError(t, client.Close())
	gone(t, session...)
	require.True(t, alive(left), "what left by setsid was killed")
	server.Log.Wait(t, "ssh command", "lost=true")
	<-told
	require.True(t, (<-told).Lost)
}

func TestChannelClosedEndsOnlyItsSession(t *testing.T) {
	server := sshdtest.Start(t, sshd.Config{Grace: 50 * time.Millisecond})
	client := server.Dial(t)
	one, two := open(t, client), open(t, client)
	session, left := startFamily(t, one, "", "wait")
	require.True(t, two.ask(t, "exec", text("echo $$; read x; echo got $x; exit 6")))
	other := two.pids(t, 1)[0]
	require.NoError(t, one.Close())
	gone(t, session...)
	require.True(t, alive(left))
	require.True(t, alive(other), "the other session was killed")
	_, err := two.Write([]byte("word\n"))
	require.NoError(t, err)
	require.Equal(t, []string{"got word"}, two.lines(t, 1))
	req := <-two.reqs
	require.Equal(t, []byte{0, 0, 0, 6}, req.Payload)
}

func TestStoppedCommandEndsToo(t *testing.T) {
	client := sshdtest.Start(t, sshd.Config{Grace: 50 * time.Millisecond}).Dial(t)
	ch := open(t, client)
	require.True(t, ch.ask(t, "exec", text(`trap 'exit 1' HUP; echo $$; kill -STOP $$; while :; do sleep 0.01; done`)))
	pid := ch.pids(t, 1)[0]
	require.NoError(t, client.Close())
	gone(t, pid)
}

func TestPatientCommandGetsHangupFirst(t *testing.T) {
	cfg := sshd.Config{Grace: 10 * time.Second} // the test does not wait for it
	told := events(&cfg)
	client := sshdtest.Start(t, cfg).Dial(t)
	mark := t.TempDir() + "/mark"
	ch := open(t, client)
	require.True(t,
		ch.ask(t, "exec", text(`trap 'echo HUP >`+mark+`; exit 7' HUP; echo ready; while :; do sleep 0.01; done`)))
	ch.lines(t, 1)
	<-told
	require.NoError(t, client.Close())
	end := <-told
	require.Equal(t, 7, end.Status)
	require.True(t, end.Lost)
	text, err := os.ReadFile(mark)
	require.NoError(t, err)
	require.Equal(t, "HUP\n", string(text))
}

// Like Open MPI's orted --daemonize: the command ends; its descendant left by setsid and closed the pipes.
func TestDaemonOutlivesNormalEnd(t *testing.T) {
	client := sshdtest.Start(t, sshd.Config{},
		func(s *sshd.Server) { s.SetDrain(20*time.Second, 30*time.Second) }).Dial(t)
	begin := time.Now()
	r := run(t, client,
		`setsid sleep 1004 </dev/null >/dev/null 2>&1 & echo $!; sleep 1005 </dev/null >/dev/null 2>&1 & echo $!; `+
			`exit 5`, nil)
	require.Less(t, time.Since(begin), 15*time.Second, "shorter than any bound")
	require.Equal(t, 5, r.status)
	var pids [2]int
	_, err := fmt.Sscan(r.stdout, &pids[0], &pids[1])
	require.NoError(t, err)
	for _, pid := range pids {
		killAtEnd(t, pid)
	}
	require.NoError(t, client.Close())
	time.Sleep(300 * time.Millisecond) // longer than HUP, TERM and KILL would take
	for _, pid := range pids {
		require.True(t, alive(pid))
	}
}

func TestHeldOutputDoesNotDelayTheEnd(t *testing.T) {
	server := sshdtest.Start(t, sshd.Config{},
		func(s *sshd.Server) { s.SetDrain(50*time.Millisecond, 300*time.Millisecond) })
	client := server.Dial(t)
	r := run(t, client, `sleep 1006 & echo $!; echo err >&2; exit 3`, nil)
	var pid int
	_, err := fmt.Sscan(r.stdout, &pid)
	require.NoError(t, err)
	killAtEnd(t, pid)
	require.Equal(t, 3, r.status)
	require.Equal(t, "err\n", r.stderr)
	require.True(t, alive(pid))

	begin := time.Now()
	busy := run(t, client, `(while echo busy; do :; done) & exit 4`, nil)
	require.Equal(t, 4, busy.status)
	require.Less(t, time.Since(begin), 5*time.Second)

	patient := sshdtest.Start(t, sshd.Config{}, func(s *sshd.Server) { s.SetDrain(10*time.Second, 15*time.Second) })
	late := run(t, patient.Dial(t), `(sleep 0.02; echo late) & echo now`, nil)
	require.Equal(t, "now\nlate\n", late.stdout, "what comes within the bound is not lost")
}

func TestSixHundredSessionsLoseNoStatus(t *testing.T) {
	client := sshdtest.Start(t, sshd.Config{}).Dial(t)
	var group sync.WaitGroup
	for worker := range 60 { // near the limit: a place must be free when the client knows of the end
		group.Go(func() {
			for i := range 10 {
				want := (worker + i) % 256
				if r := run(t, client, fmt.Sprintf("echo %d; exit %d", worker, want), nil); r.status != want ||
					r.stdout != fmt.Sprintln(worker) {
					t.Errorf("%+v", r)
				}
			}
		})
	}
	group.Wait()
}

func TestSessionsPerConnectionAreLimited(t *testing.T) {
	server := sshdtest.Start(t, sshd.Config{})
	client := server.Dial(t)
	var open64 []channel
	for range 64 {
		open64 = append(open64, open(t, client))
	}
	_, _, err := client.OpenChannel("session", nil)
	var refused *ssh.OpenChannelError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, ssh.ResourceShortage, refused.Reason)
	require.Zero(t, run(t, server.Dial(t), "true", nil).status, "another connection")
	for _, ch := range open64 {
		require.True(t, ch.ask(t, "exec", text("exit 2")))
	}
	for _, ch := range open64 {
		req := <-ch.reqs
		require.Equal(t, []byte{0, 0, 0, 2}, req.Payload)
		for range ch.reqs {
		}
	}
	require.Zero(t, run(t, client, "true", nil).status)
}

func TestEnvironmentIsLimited(t *testing.T) {
	client := sshdtest.Start(t, sshd.Config{Environ: []string{"PATH=/usr/bin:/bin"}}).Dial(t)
	ch := open(t, client)
	accepted := 0
	for i := range 2000 {
		ok := ch.ask(t, "env", ssh.Marshal(struct{ N, V string }{fmt.Sprintf("LC_X%d", i), strings.Repeat("v", 200)}))
		if ok {
			accepted++
		}
	}
	require.Equal(t, 256, accepted)
	ch2 := open(t, client)
	require.True(t, ch2.ask(t, "env", ssh.Marshal(struct{ N, V string }{"LC_A", strings.Repeat("v", 60<<10)})))
	require.False(t, ch2.ask(t, "env", ssh.Marshal(struct{ N, V string }{"LC_B", strings.Repeat("v", 5<<10)})))
	for _, bad := range []string{"", "LC_A=B", "LC_\x00", "1LC", "LC A", "LD_PRELOAD\x00=\n"} {
		require.False(t, ch2.ask(t, "env", ssh.Marshal(struct{ N, V string }{bad, "v"})), "%q", bad)
	}
	require.True(t, ch.ask(t, "exec", text("env | grep -c ^LC_X")))
	require.Equal(t, []string{"256"}, ch.lines(t, 1))
}

func TestFloodOfRequestsDoesNotStopOtherSessions(t *testing.T) {
	client := sshdtest.Start(t, sshd.Config{}).Dial(t)
	flooded := open(t, client)
	require.True(t, flooded.ask(t, "pty-req", ssh.Marshal(ptyRequest{"xterm", 80, 24, 0, 0, ""})))
	require.True(t, flooded.ask(t, "exec", text("sleep 1000")))
	for i := range uint32(5000) {
		_, err := flooded.SendRequest("window-change", false,
			ssh.Marshal(struct{ C, R, W, H uint32 }{i % 100, 24, 0, 0}))
		require.NoError(t, err)
		_, err = flooded.SendRequest("signal", false, text("CONT"))
		require.NoError(t, err)
	}
	require.Equal(t, "x\n", run(t, client, "echo x", nil).stdout)
}

type ptyRequest struct {
	Term                         string
	Columns, Rows, Width, Height uint32
	Modes                        string
}

func TestTerminal(t *testing.T) {
	server := sshdtest.Start(t, sshd.Config{Environ: []string{"PATH=/usr/bin:/bin", "SHELL=/bin/sh", "PS1=> "}})
	client := server.Dial(t)
	modes := string(ssh.Marshal(struct {
		A byte
		B uint32
		C byte
		D uint32
		E byte
		F uint32
		G byte
	}{ssh.ECHO, 0, ssh.VINTR, 7, ssh.OPOST, 0, 0}))
	ch := open(t, client)
	require.False(t, ch.ask(t, "window-change", make([]byte, 16)), "no terminal yet")
	require.False(t, ch.ask(t, "pty-req", []byte("bad")))
	require.True(t, ch.ask(t, "pty-req", ssh.Marshal(ptyRequest{"screen", 91, 37, 910, 370, modes})))
	require.True(t, ch.ask(t, "window-change", ssh.Marshal(struct{ C, R, W, H uint32 }{92, 38, 0, 0})))
	require.True(t, ch.ask(t, "exec", text(
		`test -t 0 && test -t 1 && test -t 2 && test "$(tty)" = "$SSH_TTY" && echo "tty $TERM"; stty size; `+
			`stty -a | grep -o -e '-echo ' -e 'intr = ^G' -e '-opost'; trap 'stty size; exit 8' WINCH; `+
			`printf '\000\n\001\n'; while :; do sleep 0.01; done`)))
	require.Equal(t, []string{"tty screen", "38 92", "intr = ^G", "-opost", "-echo ", "\x00", "\x01"}, ch.lines(t, 7))
	require.True(t, ch.ask(t, "window-change", ssh.Marshal(struct{ C, R, W, H uint32 }{70000, 40, 0, 0})))
	require.Equal(t, []string{"40 65535"}, ch.lines(t, 1))
	req := <-ch.reqs
	require.Equal(t, "exit-status", req.Type)
	require.Equal(t, []byte{0, 0, 0, 8}, req.Payload)

	shell := open(t, client)
	require.True(t, shell.ask(t, "pty-req", ssh.Marshal(ptyRequest{"xterm", 80, 24, 0, 0, ""})))
	require.True(t, shell.ask(t, "shell", nil))
	_, err := shell.Write([]byte("sh -c 'echo $((4*11)); exec sleep 1007'\n"))
	require.NoError(t, err)
	for !strings.Contains(shell.lines(t, 1)[0], "44") {
	}
	_, err = shell.Write([]byte{3}) // Ctrl-C
	require.NoError(t, err)
	_, err = shell.Write([]byte("exit 12\n"))
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, shell)
	require.NoError(t, err)
	req = <-shell.reqs
	require.NotNil(t, req)
	require.Equal(t, []byte{0, 0, 0, 12}, req.Payload)
}

func TestTerminalLostEndsTheShell(t *testing.T) {
	client := sshdtest.Start(t, sshd.Config{Grace: 50 * time.Millisecond}).Dial(t)
	ch := open(t, client)
	require.True(t, ch.ask(t, "pty-req", ssh.Marshal(ptyRequest{"xterm", 80, 24, 0, 0, ""})))
	require.True(t, ch.ask(t, "exec", text("trap '' HUP TERM; stty -onlcr; echo $$; sleep 1008")))
	pid := ch.pids(t, 1)[0]
	require.NoError(t, client.Close())
	gone(t, pid)
}

func TestChannelsOfOtherTypes(t *testing.T) {
	ended := make(chan struct{})
	server := sshdtest.Start(t, sshd.Config{Channels: map[string]func(context.Context, io.ReadWriteCloser, net.Addr){
		"echo@paiinit": func(ctx context.Context, ch io.ReadWriteCloser, remote net.Addr) {
			fmt.Fprintln(ch, remote)
			_, _ = io.Copy(ch, ch)
			_ = ch.Close()
		},
		"wait@paiinit": func(ctx context.Context, ch io.ReadWriteCloser, remote net.Addr) {
			fmt.Fprintln(ch, "waiting")
			<-ctx.Done()
			close(ended)
		},
	}})
	client := server.Dial(t)
	ch, reqs, err := client.OpenChannel("echo@paiinit", nil)
	require.NoError(t, err)
	ok, err := ch.SendRequest("exec", true, text("true"))
	require.NoError(t, err)
	require.False(t, ok, "not a session")
	_, err = ch.Write([]byte("words"))
	require.NoError(t, err)
	require.NoError(t, ch.CloseWrite())
	got, err := io.ReadAll(ch)
	require.NoError(t, err)
	require.Equal(t, client.LocalAddr().String()+"\nwords", string(got))
	for range reqs {
	}

	ch, _, err = client.OpenChannel("wait@paiinit", nil)
	require.NoError(t, err)
	_, err = ch.Read(make([]byte, 1))
	require.NoError(t, err)
	select {
	case <-ended:
		t.Fatal("too early")
	default:
	}
	require.NoError(t, client.Close())
	<-ended
}

func TestPanicEndsOnlyTheConnection(t *testing.T) {
	server := sshdtest.Start(t, sshd.Config{
		Channels: map[string]func(context.Context, io.ReadWriteCloser, net.Addr){
			"bad@paiinit": func(context.Context, io.ReadWriteCloser, net.Addr) { panic("a bug\nin a handler") },
		},
		OnCommand: func(e sshd.CommandEvent) {
			if strings.Contains(e.Command, "unlucky") {
				panic("a bug in OnCommand")
			}
		},
	})
	other := server.Dial(t)
	client := server.Dial(t)
	_, _, _ = client.OpenChannel("bad@paiinit", nil)
	require.Error(t, client.Wait())
	line := server.Log.Wait(t, "ssh panic", "a bug")
	require.Contains(t, line, "in=\"channel bad@paiinit\"")

	client = server.Dial(t)
	ch := open(t, client)
	require.True(t, ch.ask(t, "exec", text("echo $$; sleep 1009 # unlucky")))
	require.Error(t, client.Wait())
	server.Log.Wait(t, "ssh panic", "a bug in OnCommand")
	require.Zero(t, run(t, other, "true", nil).status)
	require.Eventually(t, func() bool { return !commandLine("unlucky") }, testTimeout, 10*time.Millisecond,
		"the command lives on")
}

// commandLine reports whether a process has the word in its arguments.
func commandLine(word string) bool {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		line, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if strings.Contains(string(line), word) {
			return true
		}
	}
	return false
}

func TestShutdownTellsClientsHowTheirCommandsEnded(t *testing.T) {
	server := sshdtest.Start(t, sshd.Config{})
	client := server.Dial(t)
	ch := open(t, client)
	require.True(t, ch.ask(t, "exec",
		text("exec 2>/dev/null; trap 'echo bye; exit 21' TERM; echo ready; while :; do sleep 0.01; done")))
	ch.lines(t, 1)
	var status []byte
	var output string
	told := make(chan struct{})
	go func() {
		defer close(told)
		rest, _ := io.ReadAll(ch)
		output = string(rest)
		for req := range ch.reqs {
			status = req.Payload
		}
	}()
	require.NoError(t, server.Shutdown(soon(t, testTimeout)))
	<-told
	require.Equal(t, "bye\n", output)
	require.Equal(t, []byte{0, 0, 0, 21}, status)
	require.Error(t, client.Wait())
	_, err := net.Dial("tcp", server.Addr.String())
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.NoError(t, server.Shutdown(context.Background()), "a second time")
}

func TestShutdownEndsHandshakesAndStubbornCommands(t *testing.T) {
	// The login deadline must not be what ends the handshakes.
	server := sshdtest.Start(t, sshd.Config{}, func(s *sshd.Server) { s.SetLogin(time.Hour) })
	silent, err := net.Dial("tcp", server.Addr.String())
	require.NoError(t, err)
	defer func() { _ = silent.Close() }()
	half, err := net.Dial("tcp", server.Addr.String())
	require.NoError(t, err)
	defer func() { _ = half.Close() }()
	_, err = half.Write([]byte("SSH-2.0-x\r\n"))
	require.NoError(t, err)
	_, err = half.Read(make([]byte, 1)) // its handshake has begun
	require.NoError(t, err)
	client := server.Dial(t)
	// Before its children print: the first signal may come as soon as all have, and must not end the leader.
	session, left := startFamily(t, open(t, client), "trap '' TERM HUP", "wait; while :; do sleep 0.01; done")
	begin := time.Now()
	err = server.Shutdown(soon(t, 200*time.Millisecond))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "1 commands did not end")
	require.Less(t, time.Since(begin), 5*time.Second)
	gone(t, session...)
	require.True(t, alive(left))
	closedByServer(t, silent, time.Second)
	closedByServer(t, half, time.Second)
}

func TestShutdownNamesWhatDoesNotEnd(t *testing.T) {
	release := make(chan struct{})
	server := sshdtest.Start(t, sshd.Config{Channels: map[string]func(context.Context, io.ReadWriteCloser, net.Addr){
		"stuck@paiinit": func(_ context.Context, ch io.ReadWriteCloser, _ net.Addr) {
			fmt.Fprintln(ch)
			<-release
		},
	}}, func(s *sshd.Server) { s.SetSettle(100 * time.Millisecond) })
	ch, _, err := server.Dial(t).OpenChannel("stuck@paiinit", nil)
	require.NoError(t, err)
	_, err = ch.Read(make([]byte, 1))
	require.NoError(t, err)
	require.ErrorContains(t, server.Shutdown(soon(t, time.Second)), "1 goroutines did not end, 0 of them commands")
	close(release)
	require.Eventually(t, func() bool { return server.Shutdown(context.Background()) == nil }, testTimeout,
		time.Millisecond, "the handler has returned")
}

func TestServeAfterShutdown(t *testing.T) {
	srv, err := sshd.New(sshd.Config{HostKey: sshdtest.Key(t)})
	require.NoError(t, err)
	require.NoError(t, srv.Shutdown(context.Background()))
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.ErrorIs(t, srv.Serve(ln), sshd.ErrServerClosed)
	_, err = ln.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
}

func TestServeReportsABrokenListener(t *testing.T) {
	srv, err := sshd.New(sshd.Config{HostKey: sshdtest.Key(t)})
	require.NoError(t, err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, ln.Close())
	require.ErrorContains(t, srv.Serve(ln), "accepting connections on 127.0.0.1:")
	require.NoError(t, srv.Shutdown(context.Background()))
}
