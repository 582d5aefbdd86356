package sshclients

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
)

// noise returns n random bytes, which are the same in every call.
func noise(n int) io.Reader { return io.LimitReader(rand.NewChaCha8([32]byte{1}), int64(n)) }

func sumOf(t *testing.T, r io.Reader) string {
	t.Helper()
	h := sha256.New()
	_, err := io.Copy(h, r)
	require.NoError(t, err)
	return fmt.Sprintf("%x", h.Sum(nil))
}

// TestBulk sends -bytes bytes through OpenSSH, first in both directions at once and then in one.
func TestBulk(t *testing.T) {
	needProgram(t, "ssh", "openssh-client")
	s := start(t, "")
	want := sumOf(t, noise(*bulkBytes))
	client := func(command string) *exec.Cmd {
		return exec.CommandContext(t.Context(), "ssh",
			s.openSSH("person", "-p", strconv.Itoa(s.port), "root@127.0.0.1", command)...)
	}
	cmd := client("cat")
	sum := sha256.New()
	cmd.Stdin, cmd.Stdout = noise(*bulkBytes), counter{sum, new(atomic.Int64)}
	require.NoError(t, cmd.Run())
	require.Equal(t, want, fmt.Sprintf("%x", sum.Sum(nil)), "%d bytes", cmd.Stdout.(counter).n.Load())

	cmd = client("sha256sum")
	cmd.Stdin = noise(*bulkBytes)
	out, err := cmd.Output()
	require.NoError(t, err)
	require.Equal(t, want, strings.Fields(string(out))[0])
}

type counter struct {
	hash.Hash
	n *atomic.Int64
}

func (c counter) Write(p []byte) (int, error) { c.n.Add(int64(len(p))); return c.Hash.Write(p) }

// TestShortCommands runs -commands commands. None may lose a byte or its status.
func TestShortCommands(t *testing.T) {
	s := start(t, "")
	client, err := ssh.Dial("tcp", s.addr(), s.config(t, "root", s.person.signer))
	require.NoError(t, err)
	defer func() { _ = client.Close() }()
	var next, failures atomic.Int64
	var group sync.WaitGroup
	for range 32 {
		group.Go(func() {
			for {
				i := next.Add(1)
				if i > int64(*commands) || failures.Load() > 10 {
					return
				}
				if err := short(client, i); err != nil {
					failures.Add(1)
					t.Errorf("command %d: %v", i, err)
				}
			}
		})
	}
	group.Wait()
	t.Logf("%d commands", min(next.Load(), int64(*commands)))
}

func short(client *ssh.Client, i int64) error {
	session, err := client.NewSession()
	if err != nil {
		return err
	}
	defer func() { _ = session.Close() }()
	var stdout, stderr bytes.Buffer
	session.Stdin, session.Stdout, session.Stderr = strings.NewReader(fmt.Sprintln("in", i)), &stdout, &stderr
	err = session.Run(fmt.Sprintf("read -r x; echo $x; echo err %d >&2; exit %d", i, i%256))
	var exit *ssh.ExitError
	status := 0
	if errors.As(err, &exit) {
		status = exit.ExitStatus()
	} else if err != nil {
		return err
	}
	if stdout.String() != fmt.Sprintln("in", i) || stderr.String() != fmt.Sprintln("err", i) || status != int(i%256) {
		return fmt.Errorf("%q, %q, status %d", stdout.String(), stderr.String(), status)
	}
	return nil
}

// TestControlMaster runs 64 commands at the same time on one connection of OpenSSH.
func TestControlMaster(t *testing.T) {
	needProgram(t, "ssh", "openssh-client")
	manySessions(t, start(t, ""))
}

func TestControlMasterOfOpenSSH10(t *testing.T) {
	s, root := startFor10(t)
	manySessions(t, s, "chroot", root)
}

func manySessions(t *testing.T, s *server, before ...string) {
	client := func(words ...string) *exec.Cmd {
		options := s.openSSH("person", append([]string{"-p", strconv.Itoa(s.port)}, words...)...)
		args := append(append(before[:len(before):len(before)], "ssh"), options...)
		return exec.CommandContext(t.Context(), args[0], args[1:]...)
	}
	require.NoError(t, client("-M", "-N", "-f", "root@127.0.0.1").Run())
	defer func() { _ = client("-O", "exit", "root@127.0.0.1").Run() }()
	var ready, group sync.WaitGroup
	begin := make(chan struct{})
	ready.Add(64)
	for i := range 64 {
		group.Go(func() {
			cmd := client("root@127.0.0.1", fmt.Sprintf("echo ready; read -r x; echo $x %d; exit %d", i, i))
			stdin, err := cmd.StdinPipe()
			if err == nil {
				err = muxed(cmd, stdin, i, ready.Done, begin)
			}
			if err != nil {
				t.Errorf("session %d: %v", i, err)
			}
		})
	}
	ready.Wait()
	close(begin)
	group.Wait()
	require.Len(t, s.log.WaitN(t, 64, `msg="ssh command"`), 64)
	require.Len(t, s.log.WaitN(t, 1, `msg="ssh login"`), 1, "there was more than one connection")
}

func muxed(cmd *exec.Cmd, stdin io.WriteCloser, i int, ready func(), begin <-chan struct{}) error {
	once := sync.OnceFunc(ready)
	defer once()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewReader(stdout)
	if line, err := lines.ReadString('\n'); err != nil || line != "ready\n" {
		_ = cmd.Process.Kill()
		return errors.Join(fmt.Errorf("%q", line), err, cmd.Wait())
	}
	once()
	<-begin
	if _, err := fmt.Fprintln(stdin, "word"); err != nil {
		return err
	}
	rest, err := io.ReadAll(lines)
	_ = cmd.Wait()
	if string(rest) != fmt.Sprintf("word %d\n", i) || cmd.ProcessState.ExitCode() != i {
		return errors.Join(fmt.Errorf("%q, status %d", rest, cmd.ProcessState.ExitCode()), err)
	}
	return nil
}

// TestParallelLogins: 500 logins at once all succeed. The server gives each 30 s, in which this process and the server
// need some seconds of a processor. On a machine that gives them less some logins are late, but others nearly so.
func TestParallelLogins(t *testing.T) {
	const limit = 30 * time.Second
	s := start(t, "")
	config := s.config(t, "root", s.person.signer)
	var group, all sync.WaitGroup
	var late atomic.Int32
	took := make([]time.Duration, 500)
	all.Add(500)
	for i := range 500 {
		group.Go(func() {
			begin := time.Now()
			client, err := ssh.Dial("tcp", s.addr(), config)
			all.Done()
			if err != nil && time.Since(begin) >= limit {
				late.Add(1)
				return
			}
			if err != nil {
				t.Error(err)
				return
			}
			took[i] = time.Since(begin)
			defer func() { _ = client.Close() }()
			all.Wait() // until all connections are open
			if i%10 == 0 {
				if err := short(client, int64(i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	if n := late.Load(); n > 0 {
		t.Logf("%d logins were late", n)
		require.Greater(t, slices.Max(took), limit/2, "the slowest login that was not late")
		return
	}
	require.Len(t, s.log.WaitN(t, 500, `msg="ssh login"`), 500)
	require.NotContains(t, s.log.String(), "level=WARN")
}
