package sshclients

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
)

// client is an SSH client. key is the name of a key in files.
type client struct {
	exec     func(key, user, command string, stdin []byte) ended
	put, get func(key, from, to string) ended // from and to are paths as the client and the server see them
}

// prove checks what every client must be able to do.
func (c client) prove(t *testing.T, s *server) {
	data := make([]byte, 4<<20+13)
	_, _ = rand.Read(data)
	if c.exec != nil {
		for _, status := range []int{0, 1, 42, 254} {
			got := c.exec("person", "root", fmt.Sprintf("echo out; echo err >&2; exit %d", status), nil)
			require.Equal(t, status, got.status, got.stderr)
			require.Equal(t, "out\n", got.stdout)
			require.Contains(t, got.stderr, "err\n")
		}
		got := c.exec("person", "root", "cat", data)
		require.Zero(t, got.status, got.stderr)
		require.True(t, got.stdout == string(data), "%d of %d bytes came back", len(got.stdout), len(data))
		s.log.Wait(t, `msg="ssh command"`, "who=person", "command=cat", "status=0")
	}
	if c.put != nil {
		s.write(t, "data", data)
		got := c.put("person", s.see("data"), filepath.Join(s.home, "copy"))
		require.Zero(t, got.status, got.stderr)
		s.same(t, data, filepath.Join(s.home, "copy"))
		got = c.get("person", filepath.Join(s.home, "copy"), s.see("back"))
		require.Zero(t, got.status, got.stderr)
		s.same(t, data, s.path("back"))
		require.NotZero(t, c.get("person", filepath.Join(s.home, "missing"), s.see("nothing")).status)
		got = c.put("stranger", s.see("data"), filepath.Join(s.home, "never"))
		require.NotZero(t, got.status)
		require.NoFileExists(t, filepath.Join(s.home, "never"))
	}
	if c.exec != nil {
		mark := filepath.Join(s.home, "mark")
		for _, who := range [][2]string{{"stranger", "root"}, {"person", "nobody"}} {
			got := c.exec(who[0], who[1], "touch "+mark, nil)
			require.NotZero(t, got.status, "%v", who)
			require.NoFileExists(t, mark)
		}
		s.log.Wait(t, "ssh login refused",
			`reason="the login name does not belong to this container's user"`, "user=nobody")
	}
	s.log.Wait(t, "ssh login refused",
		`reason="the key is not authorized"`, ssh.FingerprintSHA256(s.stranger.signer.PublicKey()))
}

func (s *server) same(t *testing.T, want []byte, file string) {
	t.Helper()
	got, err := os.ReadFile(file)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got), "%s: %d of %d bytes", file, len(got), len(want))
}

// openSSH returns the options of OpenSSH's programs, followed by more.
func (s *server) openSSH(key string, more ...string) []string {
	return append([]string{
		"-F", "none", "-i", s.see(key), "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR",
		"-o", "StrictHostKeyChecking=yes", "-o", "GlobalKnownHostsFile=none",
		"-o", "UserKnownHostsFile=" + s.see("known_hosts"), "-o", "ControlPath=" + s.see("control"),
	}, more...)
}

func (s *server) remote(user, file string) string { return user + "@127.0.0.1:" + file }

// clientsOfOpenSSH returns ssh and each way to copy files. Every command line begins with before.
func clientsOfOpenSSH(t *testing.T, s *server, before ...string) map[string]client {
	port := strconv.Itoa(s.port)
	command := func(stdin []byte, program string, args ...string) ended {
		return run(t, stdin, nil, append(append(before[:len(before):len(before)], program), args...)...)
	}
	shell := func(key, user, cmd string, stdin []byte) ended {
		return command(stdin, "ssh", s.openSSH(key, "-p", port, user+"@127.0.0.1", cmd)...)
	}
	copying := func(options ...string) func(key, from, to string) ended {
		return func(key, from, to string) ended {
			return command(nil, "scp", append(s.openSSH(key, append(options, "-P", port)...), from, to)...)
		}
	}
	scp := func(options ...string) client {
		put := copying(options...)
		return client{
			put: func(key, from, to string) ended { return put(key, from, s.remote("root", to)) },
			get: func(key, from, to string) ended { return put(key, s.remote("root", from), to) },
		}
	}
	sftp := func(verb string) func(key, from, to string) ended {
		return func(key, from, to string) ended {
			batch := fmt.Appendf(nil, "%s %s %s\n", verb, from, to)
			return command(batch, "sftp", s.openSSH(key, "-P", port, "-b", "-", "root@127.0.0.1")...)
		}
	}
	return map[string]client{
		"ssh": {exec: shell}, "scp": scp(), "scp -O": scp("-O"), "sftp": {put: sftp("put"), get: sftp("get")},
	}
}

func TestOpenSSH(t *testing.T) {
	needProgram(t, "ssh", "openssh-client")
	for name := range clientsOfOpenSSH(t, &server{}) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, "")
			clientsOfOpenSSH(t, s)[name].prove(t, s)
		})
	}
}

func TestOpenSSH10(t *testing.T) {
	for name := range clientsOfOpenSSH(t, &server{}) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, root := startFor10(t)
			clientsOfOpenSSH(t, s, "chroot", root)[name].prove(t, s)
		})
	}
}

// startFor10 starts a container for the clients of OpenSSH 10, which are in another root directory.
func startFor10(t *testing.T) (*server, string) {
	t.Helper()
	needProgram(t, "debootstrap", "debootstrap")
	needRoot(t, "another root directory")
	root, err := debian13()
	require.NoError(t, err)
	require.Contains(t, run(t, nil, nil, "chroot", root, "ssh", "-V").stderr, "OpenSSH_10.")
	dir, err := os.MkdirTemp(filepath.Join(root, "tmp"), "test-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return startWith(t, files{dir, filepath.Join("/tmp", filepath.Base(dir))}, "", nil), root
}

func TestRsync(t *testing.T) {
	t.Parallel()
	needProgram(t, "rsync", "rsync")
	s := start(t, "")
	rsync := func(key, from, to string) ended {
		shell := append([]string{"ssh"}, s.openSSH(key, "-p", strconv.Itoa(s.port))...)
		return run(t, nil, nil, "rsync", "-e", strings.Join(shell, " "), from, to)
	}
	client{
		put: func(key, from, to string) ended { return rsync(key, from, s.remote("root", to)) },
		get: func(key, from, to string) ended { return rsync(key, s.remote("root", from), to) },
	}.prove(t, s)
}

func TestDropbear(t *testing.T) {
	t.Parallel()
	needProgram(t, "dbclient", "dropbear-bin")
	s := start(t, "")
	for _, key := range []string{"person", "stranger"} {
		got := run(t, nil, nil, "dropbearconvert", "openssh", "dropbear", s.path(key), s.path(key+".db"))
		require.Zero(t, got.status)
	}
	// dropbear reads only ~/.ssh/known_hosts, and ignores ports.
	require.NoError(t, os.Mkdir(s.path(".ssh"), 0o700))
	s.write(t, ".ssh/known_hosts", append([]byte("127.0.0.1 "), ssh.MarshalAuthorizedKey(hostKey(t))...))
	client{exec: func(key, user, command string, stdin []byte) ended {
		return run(t, stdin, []string{"HOME=" + s.dir},
			"dbclient", "-i", s.path(key+".db"), "-p", strconv.Itoa(s.port), user+"@127.0.0.1", command)
	}}.prove(t, s)
}

func TestPuTTY(t *testing.T) {
	t.Parallel()
	needProgram(t, "plink", "putty-tools")
	s := start(t, "")
	for _, key := range []string{"person", "stranger"} {
		got := run(t, nil, []string{"HOME=" + s.dir},
			"puttygen", s.path(key), "-O", "private", "-o", s.path(key+".ppk"))
		require.Zero(t, got.status)
	}
	options := func(key string, more ...string) []string {
		return append([]string{"-batch", "-noagent", "-hostkey", ssh.FingerprintSHA256(hostKey(t)),
			"-i", s.path(key + ".ppk"), "-P", strconv.Itoa(s.port)}, more...)
	}
	putty := func(stdin []byte, program string, args ...string) ended {
		return run(t, stdin, []string{"HOME=" + s.dir}, append([]string{program}, args...)...)
	}
	client{
		exec: func(key, user, command string, stdin []byte) ended {
			return putty(stdin, "plink", options(key, "-ssh", user+"@127.0.0.1", command)...)
		},
		put: func(key, from, to string) ended {
			return putty(nil, "pscp", options(key, from, s.remote("root", to))...)
		},
		get: func(key, from, to string) ended {
			return putty(nil, "pscp", options(key, s.remote("root", from), to)...)
		},
	}.prove(t, s)
}

func TestParamiko(t *testing.T) {
	t.Parallel()
	if got := run(t, nil, nil, "/usr/bin/python3", "-c", "import paramiko"); got.status != 0 {
		need(t, "paramiko: not found; on Debian or Ubuntu: apt-get install python3-paramiko")
	}
	s := start(t, "")
	python := func(stdin []byte, key, user string, words ...string) ended {
		return run(t, stdin, []string{"HOME=" + s.dir}, append([]string{
			"/usr/bin/python3", "-W", "ignore", "testdata/client.py",
			strconv.Itoa(s.port), user, s.path(key), s.path("known_hosts"),
		}, words...)...)
	}
	client{
		exec: func(key, user, command string, stdin []byte) ended { return python(stdin, key, user, "run", command) },
		put:  func(key, from, to string) ended { return python(nil, key, "root", "put", from, to) },
		get:  func(key, from, to string) ended { return python(nil, key, "root", "get", from, to) },
	}.prove(t, s)
}

func TestCurl(t *testing.T) {
	t.Parallel()
	if !strings.Contains(run(t, nil, nil, "curl", "-V").stdout, " sftp ") {
		need(t, "curl: not found, or without sftp")
	}
	s := start(t, "")
	sum := sha256.Sum256(hostKey(t).Marshal())
	curl := func(key, remote string, more ...string) ended {
		return run(t, nil, nil, append([]string{
			"curl", "-sS", "-q", "--hostpubsha256", base64.RawStdEncoding.EncodeToString(sum[:]), "-u", "root:",
			"--key", s.path(key), "--pubkey", s.path(key + ".pub"),
			fmt.Sprintf("sftp://127.0.0.1:%d%s", s.port, remote),
		}, more...)...)
	}
	client{
		put: func(key, from, to string) ended { return curl(key, to, "-T", from) },
		get: func(key, from, to string) ended { return curl(key, from, "-o", to) },
	}.prove(t, s)
}

func TestGit(t *testing.T) {
	t.Parallel()
	needProgram(t, "git", "git")
	s := start(t, "")
	git := func(key string, args ...string) ended {
		return run(t, nil, []string{
			"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir, "GIT_CONFIG_NOSYSTEM=1",
			"GIT_AUTHOR_NAME=x", "GIT_AUTHOR_EMAIL=x@example.com",
			"GIT_COMMITTER_NAME=x", "GIT_COMMITTER_EMAIL=x@example.com",
			"GIT_SSH_COMMAND=" + strings.Join(append([]string{"ssh"}, s.openSSH(key)...), " "),
		}, append([]string{"git"}, args...)...)
	}
	bare, url := filepath.Join(s.home, "repo.git"), fmt.Sprintf("ssh://root@127.0.0.1:%d%s/repo.git", s.port, s.home)
	require.Zero(t, git("person", "init", "-q", "--bare", "-b", "main", bare).status)
	clone := s.path("clone")
	got := git("person", "clone", "-q", url, clone)
	require.Zero(t, got.status, got.stderr)
	data := make([]byte, 1<<20)
	_, _ = rand.Read(data)
	require.NoError(t, os.WriteFile(filepath.Join(clone, "data"), data, 0o600))
	require.Zero(t, git("person", "-C", clone, "add", "data").status)
	require.Zero(t, git("person", "-C", clone, "commit", "-q", "-m", "data").status)
	require.NotZero(t, git("stranger", "-C", clone, "push", "-q", "origin", "HEAD:main").status)
	got = git("person", "-C", clone, "push", "-q", "origin", "HEAD:main")
	require.Zero(t, got.status, got.stderr)
	require.Equal(t, git("person", "-C", clone, "rev-parse", "HEAD").stdout,
		git("person", "-C", bare, "rev-parse", "main").stdout)
	got = git("person", "clone", "-q", url, s.path("again"))
	require.Zero(t, got.status, got.stderr)
	s.same(t, data, filepath.Join(s.path("again"), "data"))
	s.log.Wait(t, "ssh login refused", `reason="the key is not authorized"`)
}

func TestAnsible(t *testing.T) {
	t.Parallel()
	needProgram(t, "ansible", "ansible-core")
	s := start(t, "")
	ansible := func(key string, words ...string) ended {
		return run(t, nil, []string{
			"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir, "LC_ALL=C.UTF-8", "ANSIBLE_PIPELINING=True",
			"ANSIBLE_NOCOLOR=1", "ANSIBLE_TIMEOUT=60", // seconds; the default is too short for a slow machine
			// The default would leave a ControlMaster behind.
			"ANSIBLE_SSH_ARGS=" + strings.Join(s.openSSH(key, "-o", "ControlMaster=no"), " "),
		}, append([]string{
			"ansible", "all", "-i", "127.0.0.1,", "-u", "root", "-e", "ansible_port=" + strconv.Itoa(s.port),
			"-e", "ansible_python_interpreter=/usr/bin/python3",
		}, words...)...)
	}
	got := ansible("person", "-m", "ping")
	require.Zero(t, got.status, got.stdout+got.stderr)
	require.Contains(t, got.stdout, `"ping": "pong"`)
	got = ansible("person", "-m", "shell", "-a", "echo here; exit 3")
	require.Equal(t, 2, got.status, got.stdout+got.stderr)
	require.Contains(t, got.stdout, "rc=3 >>\nhere")
	got = ansible("stranger", "-m", "ping")
	require.Equal(t, 4, got.status, got.stdout+got.stderr)
	require.Contains(t, got.stdout, "UNREACHABLE")
	s.log.Wait(t, "ssh login refused", `reason="the key is not authorized"`)
}
