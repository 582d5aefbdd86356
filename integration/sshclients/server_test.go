package sshclients

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"

	"github.com/paiinit/paiinit/integration/hang"
	"github.com/paiinit/paiinit/integration/testsignals"
	"github.com/paiinit/paiinit/jobkey"
	"github.com/paiinit/paiinit/sshd/sshdtest"
)

var (
	bulkBytes = flag.Int("bytes", 64<<20, "number of bytes that TestBulk sends in each direction")
	commands  = flag.Int("commands", 2000, "number of commands that TestShortCommands runs")
)

// paiinit is the binary under test.
var paiinit string

func TestMain(m *testing.M) {
	testsignals.Default()
	dir, err := os.MkdirTemp("", "paiinit-sshclients-")
	if err == nil {
		paiinit = filepath.Join(dir, "paiinit")
		cmd := exec.Command("go", "build", "-trimpath", "-tags", "urfave_cli_no_docs",
			"-ldflags", "-s -w", "-o", paiinit, "../../cmd/paiinit")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		var out []byte
		if out, err = cmd.CombinedOutput(); err != nil {
			err = fmt.Errorf("building paiinit: %w\n%s", err, out)
		}
	}
	if err == nil {
		err = os.Chmod(dir, 0o755) // other users must be able to run it
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(status int) {
		_ = os.RemoveAll(dir)
		os.Exit(status)
	}))
}

const (
	jobID  = "clients"
	secret = "correct horse battery staple"
)

// server is a container of one rank with an SSH server for people, and the files of its clients.
type server struct {
	port     int
	home     string // HOME of its sessions
	log      *sshdtest.Log
	cmd      *exec.Cmd
	waits    bool // it waits for another rank, and launches nothing
	files         // files of clients on this machine
	person   key  // the server accepts it
	stranger key  // the server does not know it
}

// key is a key pair, whose private half is a file in files.
type key struct {
	signer ssh.Signer
	name   string
}

// files is a directory of files for clients, which may have another root directory.
type files struct {
	dir   string
	shown string // path of dir for the clients
}

func (f files) path(name string) string { return filepath.Join(f.dir, name) }
func (f files) see(name string) string  { return filepath.Join(f.shown, name) }

// write creates a file with a mode that ssh clients accept for private keys.
func (f files) write(t testing.TB, name string, data []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(f.path(name), data, 0o600))
}

func (f files) key(t testing.TB, name string) key {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	block, err := ssh.MarshalPrivateKey(private, "")
	require.NoError(t, err)
	f.write(t, name, pem.EncodeToMemory(block))
	signer, err := ssh.NewSignerFromKey(private)
	require.NoError(t, err)
	line := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(signer.PublicKey()))) + " " + name + "\n"
	f.write(t, name+".pub", []byte(line))
	return key{signer, name}
}

// start starts a container whose authorized_keys has a line for person, with options.
func start(t testing.TB, options string) *server {
	t.Helper()
	return startWith(t, filesIn(t.TempDir()), options, nil)
}

func filesIn(dir string) files { return files{dir, dir} }

// waiting makes the container wait for a second rank, for as long as any attack takes.
func waiting(s *server, cmd *exec.Cmd) {
	s.waits = true
	at := slices.Index(cmd.Args, "--size")
	job := []string{"--rank", "0", "--peers", "127.0.0.1,127.0.0.1:1", "--timeout", "1h"}
	cmd.Args = slices.Concat(cmd.Args[:at], job, cmd.Args[at+2:])
}

// startWith starts a container whose clients use f. wrap may change its command.
func startWith(t testing.TB, f files, options string, wrap func(*server, *exec.Cmd)) *server {
	t.Helper()
	s := &server{files: f, home: filepath.Join(t.TempDir(), "home"), log: &sshdtest.Log{}}
	require.NoError(t, os.Mkdir(s.home, 0o755))
	s.person, s.stranger = s.key(t, "person"), s.key(t, "stranger")
	public, err := os.ReadFile(s.path("person.pub"))
	require.NoError(t, err)
	own := t.TempDir()
	keys, secretFile := filepath.Join(own, "authorized_keys"), filepath.Join(own, "secret")
	require.NoError(t, os.WriteFile(keys, append([]byte(options), public...), 0o644))
	require.NoError(t, os.WriteFile(secretFile, []byte(secret), 0o644))
	for _, dir := range []string{own, filepath.Dir(own), filepath.Dir(s.home)} { // other users must have access
		require.NoError(t, os.Chmod(dir, 0o755))
	}
	s.cmd = exec.Command(paiinit, "--job", jobID, "--size", "1", "--port", strconv.Itoa(freePort(t)),
		"--secret-file", secretFile, "--authorized-keys", keys, "--state-dir", filepath.Join(own, "state"),
		"--log-level", "debug", "--", "sleep", "1000")
	s.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.home, "SHELL=/bin/sh",
		"PAIINIT_LOG_FORMAT=logfmt", hang.Variable}
	s.cmd.Stderr = s.log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM} // it ends if the test is killed
	if wrap != nil {
		wrap(s, s.cmd)
	}
	require.NoError(t, s.cmd.Start())
	t.Cleanup(func() {
		_ = s.cmd.Process.Signal(syscall.SIGTERM)
		late := time.AfterFunc(time.Minute, func() {
			t.Log(hang.Report(hang.Container{Name: "the server", First: s.cmd.Process.Pid}))
			_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL)
		})
		defer late.Stop()
		_ = s.cmd.Wait()
		if status := s.cmd.ProcessState.ExitCode(); status != 143 {
			t.Errorf("paiinit ended with status %d", status)
		}
		if strings.Contains(s.log.String(), "panic") {
			t.Error("paiinit panicked")
		}
		if t.Failed() {
			t.Logf("log of the server:\n%s", s.log)
		}
	})
	line := s.log.Wait(t, "msg=listening")
	found := regexp.MustCompile(`addr=\S+:(\d+)`).FindStringSubmatch(line)
	require.NotNil(t, found, line)
	s.port, err = strconv.Atoi(found[1])
	require.NoError(t, err)
	if !s.waits {
		s.log.Wait(t, "msg=launching")
	}
	s.write(t, "known_hosts", fmt.Appendf(nil, "[127.0.0.1]:%d %s", s.port, ssh.MarshalAuthorizedKey(hostKey(t))))
	return s
}

// hostKey returns the host key of the server.
func hostKey(t testing.TB) ssh.PublicKey {
	t.Helper()
	return derive(t, jobID, "").Host("worker-0").PublicKey()
}

func derive(t testing.TB, job, attempt string) *jobkey.Keys {
	t.Helper()
	keys, err := jobkey.Derive([]byte(secret), job, attempt)
	require.NoError(t, err)
	return keys
}

func freePort(t testing.TB) int {
	t.Helper()
	for {
		// Choose below ip_local_port_range: other tests take many of those ports before the server listens.
		ln, err := net.Listen("tcp", fmt.Sprintf(":%d", 20000+mathrand.N(10000)))
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		require.NoError(t, err)
		require.NoError(t, ln.Close())
		return ln.Addr().(*net.TCPAddr).Port
	}
}

// config returns the configuration of a client in this process.
func (s *server) config(t testing.TB, user string, signer ssh.Signer) *ssh.ClientConfig {
	t.Helper()
	c := &ssh.ClientConfig{User: user, HostKeyCallback: ssh.FixedHostKey(hostKey(t)), Timeout: 30 * time.Second}
	if signer != nil {
		c.Auth = []ssh.AuthMethod{ssh.PublicKeys(signer)}
	}
	return c
}

func (s *server) addr() string { return fmt.Sprintf("127.0.0.1:%d", s.port) }

// pss returns the memory of the server's processes, in bytes.
func (s *server) pss(t testing.TB) (sum int) {
	t.Helper()
	pids := []string{strconv.Itoa(s.cmd.Process.Pid)}
	for len(pids) > 0 {
		pid := pids[0]
		pids = pids[1:]
		lists, err := filepath.Glob("/proc/" + pid + "/task/*/children")
		require.NoError(t, err)
		for _, list := range lists {
			text, _ := os.ReadFile(list) // fails if the thread has ended
			pids = append(pids, strings.Fields(string(text))...)
		}
		text, _ := os.ReadFile("/proc/" + pid + "/smaps_rollup")
		for line := range bytes.Lines(text) {
			var kB int
			if n, _ := fmt.Sscanf(string(line), "Pss: %d kB", &kB); n == 1 {
				sum += kB << 10
			}
		}
	}
	return sum
}

// ended is the result of a client.
type ended struct {
	stdout, stderr string
	status         int
}

// run runs a client. It fails the test if the client needs more than a minute, or longer with large -bytes.
func run(t testing.TB, stdin []byte, environ []string, args ...string) ended {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute+time.Duration(*bulkBytes/(5<<20))*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = environ
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &stdout, &stderr
	err := cmd.Run()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	if ctx.Err() != nil {
		t.Fatalf("%v did not end: %s", cmd, stderr.String())
	}
	return ended{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// need skips the test because something is missing, or fails it if PAIINIT_TEST_REQUIRE is set.
func need(t testing.TB, why string) {
	t.Helper()
	if os.Getenv("PAIINIT_TEST_REQUIRE") != "" {
		t.Fatal(why)
	}
	t.Skip(why)
}

func needProgram(t testing.TB, program, pkg string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		need(t, fmt.Sprintf("%s: not found; on Debian or Ubuntu: apt-get install %s", program, pkg))
	}
}

func needRoot(t testing.TB, why string) {
	t.Helper()
	if os.Geteuid() != 0 {
		need(t, why+" needs root")
	}
}

// debian13 returns the root directory of a system with OpenSSH 10.
var debian13 = sync.OnceValues(func() (string, error) {
	cmd := exec.Command("./debian13.sh", "../../.cache")
	cmd.Stderr = &bytes.Buffer{}
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%v: %w\n%s", cmd, err, cmd.Stderr)
	}
	return filepath.Abs(strings.TrimSpace(string(out)))
})
