package sshclients

import (
	"bytes"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pkg/sftp"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/scrypt"
	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"
)

// ordinary is the id of a user without a passwd entry.
const ordinary = 54321

// as runs the server as another user, which owns the server's files.
func as(t testing.TB, uid int) func(*server, *exec.Cmd) {
	return func(s *server, cmd *exec.Cmd) {
		own := filepath.Dir(cmd.Args[slices.Index(cmd.Args, "--state-dir")+1])
		for _, dir := range []string{s.home, own} {
			require.NoError(t, os.Chown(dir, uid, uid))
		}
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}
	}
}

// TestNoSecretInMemory: no process can read the secret, or a key derived from it, in the memory of another process.
// Processes that hold keys are not dumpable, so that their files in /proc belong to root.
func TestNoSecretInMemory(t *testing.T) {
	needRoot(t, "reading the memory of other processes")
	long := strings.Repeat(secret, 2)
	for name, tt := range map[string]struct {
		secret string
		given  func(*exec.Cmd)
	}{
		"file":     {secret, func(*exec.Cmd) {}},
		"variable": {secret, inVariable(secret)},
		"long":     {long, inVariable(long)},
	} {
		everywhere, keys := derivedFrom(t, tt.secret)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startWith(t, filesIn(t.TempDir()), "", func(s *server, cmd *exec.Cmd) {
				as(t, ordinary)(s, cmd)
				tt.given(cmd)
			})
			config := s.config(t, "root", s.person.signer)
			config.HostKeyCallback = ssh.InsecureIgnoreHostKey() // s.config expects the key of the other secret
			client, err := ssh.Dial("tcp", s.addr(), config)
			require.NoError(t, err)
			defer func() { _ = client.Close() }()
			files, err := sftp.NewClient(client)
			require.NoError(t, err)
			defer func() { _ = files.Close() }()
			_, err = files.Getwd()
			require.NoError(t, err)
			session, err := client.NewSession()
			require.NoError(t, err)
			defer func() { _ = session.Close() }()
			in, err := session.StdinPipe()
			require.NoError(t, err)
			out, err := session.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, session.Start(`echo ready; read go
				cat "/proc/$PPID/environ" "/proc/$PPID/fd/0" >&2; echo "status $?"; read end`))
			says := func(text string) {
				t.Helper()
				answer := make([]byte, len(text)+1)
				_, err := io.ReadFull(out, answer)
				require.NoError(t, err)
				require.Equal(t, text+"\n", string(answer))
			}
			says("ready")

			first := s.cmd.Process.Pid
			agent := children(t, first)[0]
			var names []string
			hidden := map[int]bool{first: true, agent: true}
			all := append([]int{first, agent}, children(t, agent)...)
			for _, pid := range all[2:] {
				line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
				require.NoError(t, err)
				words := strings.Split(string(line), "\x00")
				hidden[pid] = words[1] == "sftp-server"
				names = append(names, words[0])
			}
			require.ElementsMatch(t, []string{"/proc/self/exe", "sleep", "sh"}, names)

			for _, pid := range all {
				info, err := os.Stat(fmt.Sprintf("/proc/%d/environ", pid))
				require.NoError(t, err)
				belongs := map[bool]uint32{true: 0, false: ordinary}[hidden[pid]]
				require.Equal(t, belongs, info.Sys().(*syscall.Stat_t).Uid, pid)
				absent := keys
				if pid == agent {
					absent = everywhere
				}
				var found []string
				for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(100 * time.Millisecond) {
					if found = inMemory(t, pid, absent); len(found) == 0 || time.Now().After(deadline) {
						break
					}
				}
				require.Empty(t, found, "in the memory of process %d of %v", pid, all)
			}
			logsIn := map[string]string{"seed": keys["user's seed"]}
			require.NotEmpty(t, inMemory(t, agent, logsIn), "inMemory must find a key that the agent holds")

			_, err = io.WriteString(in, "go\n")
			require.NoError(t, err)
			says("status 1") // a session must not read the agent's files
			_, err = io.WriteString(in, "end\n")
			require.NoError(t, err)
			require.NoError(t, session.Wait())
		})
	}
}

func inVariable(secret string) func(*exec.Cmd) {
	return func(cmd *exec.Cmd) {
		at := slices.Index(cmd.Args, "--secret-file")
		cmd.Args = slices.Delete(cmd.Args, at, at+2)
		cmd.Env = append(cmd.Env, "PAIINIT_SECRET="+secret)
	}
}

// derivedFrom computes, like package jobkey, the values that no process may keep (everywhere) and those that only
// processes that are not dumpable may keep (keys).
func derivedFrom(t *testing.T, secret string) (everywhere, keys map[string]string) {
	key, domain := []byte(secret), "paiinit/v1"
	everywhere = map[string]string{"secret": secret}
	if len(secret) < 32 {
		domain += "/stretched"
		salt := saltOf(domain, jobID, "")
		mac := hmac.New(sha256.New, key)
		mac.Write(salt)
		password := mac.Sum(nil)
		var err error
		key, err = scrypt.Key(password, salt, 2048, 8, 1, 32)
		require.NoError(t, err)
		everywhere["stretched secret"], everywhere["password"] = string(key), string(password)
	}
	prk, err := hkdf.Extract(sha256.New, key, saltOf(domain, jobID, ""))
	require.NoError(t, err)
	everywhere["HKDF key"] = string(prk)
	for name, text := range maps.Clone(everywhere) {
		everywhere[name+", as words of a hash"] = swapped(text)
	}
	keys = maps.Clone(everywhere)
	for name, info := range map[string]string{
		"gossip key": "gossip", "user's seed": "ssh-user", "host's seed": "ssh-host/worker-0",
	} {
		derived, err := hkdf.Expand(sha256.New, prk, info, 32)
		require.NoError(t, err)
		keys[name] = string(derived)
	}
	return everywhere, keys
}

// saltOf computes the salt like package jobkey.
func saltOf(domain string, names ...string) []byte {
	b := []byte(domain)
	for _, n := range names {
		b = append(binary.BigEndian.AppendUint64(b, uint64(len(n))), n...)
	}
	return b
}

// swapped returns a text as SHA-256 stores it on a little-endian machine.
func swapped(text string) string {
	b := []byte(text)[:len(text)&^3]
	for i := 0; i < len(b); i += 4 {
		slices.Reverse(b[i : i+4])
	}
	return string(b)
}

// children returns the children of all threads of a process.
func children(t testing.TB, pid int) (found []int) {
	t.Helper()
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	require.NoError(t, err)
	for _, list := range lists {
		text, _ := os.ReadFile(list) // fails if the thread has ended
		for _, word := range strings.Fields(string(text)) {
			child, err := strconv.Atoi(word)
			require.NoError(t, err)
			found = append(found, child)
		}
	}
	return found
}

// inMemory searches the memory of a process for texts, and returns the names and places of all matches.
func inMemory(t testing.TB, pid int, texts map[string]string) (found []string) {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	require.NoError(t, err)
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	require.NoError(t, err)
	defer func() { _ = memory.Close() }()
	read := 0
	for line := range strings.Lines(string(maps)) {
		var begin, end uint64
		var mode string
		_, err := fmt.Sscanf(line, "%x-%x %s", &begin, &end, &mode)
		require.NoError(t, err)
		if mode[0] != 'r' {
			continue
		}
		const step, overlap = 8 << 20, 64
		for at := begin; at < end; at += step {
			data := make([]byte, min(step+overlap, end-at))
			n, err := memory.ReadAt(data, int64(at))
			if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, unix.EIO) {
				require.NoError(t, err)
			}
			read += n
			for name, text := range texts {
				if i := bytes.Index(data[:n], []byte(text)); i >= 0 {
					found = append(found, fmt.Sprintf("%s at %x in %s", name, at+uint64(i), strings.TrimSpace(line)))
				}
			}
		}
	}
	require.Greater(t, read, 100<<10)
	return found
}
