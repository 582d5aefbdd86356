package sshclients

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
)

func TestAudit(t *testing.T) {
	needProgram(t, "ssh-audit", "ssh-audit")
	s := start(t, "")
	got := run(t, nil, nil, "ssh-audit", "-n", "-p", strconv.Itoa(s.port), "127.0.0.1")
	require.Contains(t, got.stdout, "(key) ssh-ed25519")
	require.Contains(t, got.stdout, "(enc) aes128-gcm@openssh.com")
	require.NotContains(t, got.stdout, "[fail]")
}

// TestNobodyGetsIn: only this attempt of this job, and people with a valid line in authorized_keys, can log in. The log
// tells the reason of each refusal.
func TestNobodyGetsIn(t *testing.T) {
	own := derive(t, jobID, "")
	ofJob := func(*server) ssh.Signer { return own.User() }
	ofPerson := func(s *server) ssh.Signer { return s.person.signer }
	const (
		wrongKey  = "the key is not authorized"
		wrongName = "the login name does not belong to this container's user"
	)
	for name, row := range map[string]struct {
		options string
		user    string
		signer  func(*server) ssh.Signer // nil = no key
		reason  string                   // of the refusal; "" = the login succeeds
		skipped string
	}{
		"the job's": {user: "root", signer: ofJob},
		"person":    {user: "root", signer: ofPerson},
		"none":      {user: "root", reason: "no key was offered"},
		"wrong key": {
			user: "root", signer: func(s *server) ssh.Signer { return s.stranger.signer }, reason: wrongKey,
		},
		"another job": {
			user: "root", signer: func(*server) ssh.Signer { return derive(t, "other", "").User() }, reason: wrongKey,
		},
		"another attempt": {
			user: "root", signer: func(*server) ssh.Signer { return derive(t, jobID, "2").User() }, reason: wrongKey,
		},
		"host key": {
			user: "root", signer: func(*server) ssh.Signer { return own.Host("worker-0") }, reason: wrongKey,
		},
		"job's, wrong name": {user: "nobody", signer: ofJob, reason: wrongName},
		"wrong name":        {user: "nobody", signer: ofPerson, reason: wrongName},
		"expired": {
			options: `expiry-time="20200101Z" `, user: "root", signer: ofPerson,
			reason: "the key of person expired at 2020-01-01T00:00:00Z",
		},
		"unknown option": {
			options: `tunnel="1" `, user: "root", signer: ofPerson, reason: wrongKey, skipped: "is not supported",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, row.options)
			if row.skipped != "" {
				s.log.Wait(t, "level=WARN", "ssh authorized key skipped", "line=1", row.skipped)
			}
			var signer ssh.Signer
			if row.signer != nil {
				signer = row.signer(s)
			}
			client, err := ssh.Dial("tcp", s.addr(), s.config(t, row.user, signer))
			if row.reason == "" {
				require.NoError(t, err)
				require.NoError(t, client.Close())
				s.log.Wait(t, `msg="ssh login"`, "user="+row.user, ssh.FingerprintSHA256(signer.PublicKey()))
				return
			}
			require.ErrorContains(t, err, "unable to authenticate")
			line := s.log.Wait(t, "level=WARN", "ssh login refused", "remote=127.0.0.1:", "user="+row.user,
				fmt.Sprintf("reason=%q", row.reason))
			if signer != nil {
				require.Contains(t, line, ssh.FingerprintSHA256(signer.PublicKey()))
			}
			require.NotContains(t, s.log.String(), `msg="ssh login"`)
		})
	}
}

// TestHostKeyIsOfOneRank: a rank cannot pass for another one, because each has its own host key.
func TestHostKeyIsOfOneRank(t *testing.T) {
	s := start(t, "")
	config := s.config(t, "root", s.person.signer)
	config.HostKeyCallback = ssh.FixedHostKey(derive(t, jobID, "").Host("worker-1").PublicKey())
	_, err := ssh.Dial("tcp", s.addr(), config)
	require.ErrorContains(t, err, "host key mismatch")
}

// TestRepeatedRefusalsAreOneLine: a person who tries a wrong key again and again is one line of the log.
func TestRepeatedRefusalsAreOneLine(t *testing.T) {
	needProgram(t, "ssh", "openssh-client")
	s := start(t, "")
	for range 31 {
		got := run(t, nil, nil, append([]string{"ssh"},
			s.openSSH("stranger", "-p", strconv.Itoa(s.port), "root@127.0.0.1", "true")...)...)
		require.Equal(t, 255, got.status)
	}
	require.Zero(t, run(t, nil, nil, append([]string{"ssh"},
		s.openSSH("person", "-p", strconv.Itoa(s.port), "root@127.0.0.1", "true")...)...).status)
	s.log.Wait(t, `msg="ssh login"`, "who=person")
	s.log.Wait(t, "level=WARN", "ssh login refused", `reason="the key is not authorized"`)
	require.Equal(t, 1, strings.Count(s.log.String(), `level=WARN msg="ssh login refused"`))
}

func TestForwardingIsRefused(t *testing.T) {
	needProgram(t, "ssh", "openssh-client")
	s := start(t, "")
	ssh := func(words ...string) ended {
		options := s.openSSH("person", append([]string{"-p", strconv.Itoa(s.port)}, words...)...)
		return run(t, nil, nil, append([]string{"ssh"}, options...)...)
	}
	got := ssh("-o", "ExitOnForwardFailure=yes", "-R", "0:127.0.0.1:1", "root@127.0.0.1", "true")
	require.Equal(t, 255, got.status)
	got = ssh("-W", "127.0.0.1:22", "root@127.0.0.1")
	require.Equal(t, 255, got.status)
	s.log.Wait(t, "ssh channel refused", "who=person", "type=direct-tcpip")
	got = ssh("-A", "-X", "root@127.0.0.1", "echo \"[$SSH_AUTH_SOCK$DISPLAY]\"")
	require.Equal(t, ended{stdout: "[]\n"}, got)
	got = ssh("-s", "root@127.0.0.1", "netconf")
	require.Equal(t, 255, got.status)
}

// TestUnreadableKeys: paiinit reports a bad authorized_keys file at once, with the status of wrong usage.
func TestUnreadableKeys(t *testing.T) {
	dir := t.TempDir()
	keys := filepath.Join(dir, "keys")
	require.NoError(t, os.WriteFile(keys, nil, 0o600))
	require.NoError(t, os.Chmod(keys, 0o666))
	for file, reason := range map[string]string{
		keys:                     "is writable by its group or by others",
		filepath.Join(dir, "no"): "no such file",
	} {
		got := run(t, nil, []string{"PAIINIT_AUTHORIZED_KEYS=" + file},
			paiinit, "--size", "1", "--state-dir", dir, "--", "true")
		require.Equal(t, 64, got.status, got.stderr)
		require.Contains(t, got.stderr, file)
		require.Contains(t, got.stderr, reason)
	}
}

// TestOrdinaryUser runs hardened containers: a user without a passwd entry, a root file system that is read-only except
// /run, a HOME that all ranks share.
func TestOrdinaryUser(t *testing.T) {
	needRoot(t, "another user")
	needProgram(t, "ssh", "openssh-client")
	for name, script := range map[string]string{
		"no passwd entry": "exec setpriv --reuid=54321 --regid=54321 --clear-groups \"$@\"",
		"read-only root": "mount -t tmpfs -o mode=1777 none /run && mount --bind \"$HOME\" \"$HOME\" && " +
			"mount -o remount,bind,ro / && exec setpriv --reuid=54321 --regid=54321 --clear-groups \"$@\"",
		"home cannot be written": "mount -t tmpfs -o mode=1777 none /run && mount -o remount,bind,ro / && " +
			"exec setpriv --reuid=54321 --regid=54321 --clear-groups \"$@\"",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s := startWith(t, files{dir, dir}, "", func(s *server, cmd *exec.Cmd) {
				require.NoError(t, os.Chown(s.home, 54321, 54321))
				i := slices.Index(cmd.Args, "--state-dir")
				cmd.Args[i+1] = "/run/" + filepath.Base(filepath.Dir(s.home)) + strconv.Itoa(os.Getpid())
				if !strings.Contains(script, "/run") {
					cmd.Args[i+1] = filepath.Join(os.TempDir(),
						filepath.Base(cmd.Args[i+1])+strings.ReplaceAll(t.Name(), "/", "-"))
				}
				t.Cleanup(func() { _ = os.RemoveAll(cmd.Args[i+1]) })
				unshare := []string{"unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"}
				cmd.Args = append(unshare, cmd.Args...)
				var err error
				cmd.Path, err = exec.LookPath("unshare")
				require.NoError(t, err)
			})
			clients := clientsOfOpenSSH(t, s)
			for _, user := range []string{"54321", "root"} {
				got := clients["ssh"].exec("person", user, "id -u; pwd; echo $USER $HOME", nil)
				require.Equal(t, ended{stdout: fmt.Sprintf("54321\n%s\n54321 %[1]s\n", s.home)}, got)
			}
			require.Equal(t, 255, clients["ssh"].exec("person", "nobody", "true", nil).status)
			s.write(t, "data", []byte("data"))
			got := clients["scp"].get("person", "/etc/os-release", s.path("release"))
			require.Zero(t, got.status, got.stderr)
			require.NotZero(t, clients["scp"].put("person", s.path("data"), "/etc/never").status)
			require.NotZero(t, clients["sftp"].get("person", "/etc/shadow", s.path("shadow")).status)
			left, err := os.ReadDir(s.home)
			require.NoError(t, err)
			require.Empty(t, left, "paiinit must not write to HOME")
			if name != "home cannot be written" {
				got = clients["sftp"].put("person", s.path("data"), "data")
				require.Zero(t, got.status, got.stderr)
				s.same(t, []byte("data"), filepath.Join(s.home, "data"))
			}
		})
	}
}

// TestLimitsOfSessions: sessions have the locked memory that verbs need, and no more open files than Open MPI 4 can
// handle.
func TestLimitsOfSessions(t *testing.T) {
	needProgram(t, "prlimit", "util-linux")
	dir := t.TempDir()
	s := startWith(t, files{dir, dir}, "", func(_ *server, cmd *exec.Cmd) {
		var err error
		cmd.Path, err = exec.LookPath("prlimit")
		require.NoError(t, err)
		cmd.Args = append([]string{"prlimit", "--memlock=65536:"}, cmd.Args...)
	})
	got := clientsOfOpenSSH(t, s)["ssh"].exec("person", "root", "ulimit -Sl; ulimit -Hl; ulimit -Sn", nil)
	limits := strings.Fields(got.stdout)
	require.Len(t, limits, 3, got.stderr)
	require.Equal(t, limits[1], limits[0])
	require.NotEqual(t, "64", limits[0], "the hard limit of this machine is too low for this test")
	files, err := strconv.Atoi(limits[2])
	require.NoError(t, err)
	require.LessOrEqual(t, files, 65536)
}
