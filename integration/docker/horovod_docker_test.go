package docker

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// horovodImage has the mpirun and the configuration of Horovod's own images, and paiinit as its entry point.
var horovodImage = sync.OnceValues(func() (string, error) {
	base, err := image("./base.sh")
	if err != nil {
		return "", err
	}
	return image("./horovod.sh", base)
})

// stockConf is the configuration of Open MPI in Horovod's own images, as in horovod.sh.
const stockConf = "hwloc_base_binding_policy = none\nrmaps_base_mapping_policy = slot\n" +
	"btl_tcp_if_exclude = lo,docker0\n"

// machineSlots replaces the examples' 4 ranks per machine by 1, for these tests.
var machineSlots = strings.NewReplacer("host1:4,host2:4,host3:4,host4:4", "host1:1,host2:1,host3:1,host4:1", "16", "4")

// exampleWords runs a script of examples/ with a docker that prints its arguments, and returns these without "run". The
// test's image, files and network replace the example's.
func exampleWords(t *testing.T, file, keys string) []string {
	t.Helper()
	dir := t.TempDir()
	shim := "#!/bin/sh\nprintf '%s\\0' \"$@\"\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "docker"), []byte(shim), 0o755)) //nolint:gosec // a program
	cmd := exec.CommandContext(t.Context(), filepath.Join(root, "examples", file))
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
	out, err := cmd.Output()
	require.NoError(t, err)
	words := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	require.Equal(t, "run", words[0])
	words = words[1:]
	at := slices.Index(words, "--gpus")
	require.NotEqual(t, -1, at, "%q", words)
	words = slices.Delete(words, at, at+2)
	words = slices.DeleteFunc(words, func(word string) bool { return word == "--network=host" })
	for i, word := range words {
		switch word {
		case "my/horovod":
			words[i] = "IMAGE"
		case "/mnt/share/ssh:/root/.ssh":
			words[i] = keys + ":/root/.ssh"
		default:
			words[i] = machineSlots.Replace(word)
		}
	}
	program, err := filepath.Abs(filepath.Join(root, "examples", "allreduce.py"))
	require.NoError(t, err)
	return append([]string{"--volume", program + ":/examples/train.py:ro"}, words...)
}

// sharedKeys creates the directory that all machines share, with a key pair as of ssh-keygen and cp.
func sharedKeys(t *testing.T) string {
	t.Helper()
	keys := t.TempDir()
	for name, text := range map[string]string{
		"id_rsa":          "-----BEGIN OPENSSH PRIVATE KEY-----\na key of all machines\n",
		"id_rsa.pub":      "ssh-rsa AAAA root@host1\n",
		"authorized_keys": "ssh-rsa AAAA root@host1\n",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(keys, name), []byte(text), 0o600))
	}
	return keys
}

// TestHorovodInDocker: Horovod in Docker on several machines, with the host's network, a shared directory with keys in
// ~/.ssh, a list of host names, and the port of sshd in Open MPI's arguments.
func TestHorovodInDocker(t *testing.T) {
	t.Parallel()
	done := "sum = 10, expected 10 (host1, host2, host3, host4)"
	documented(t, done, openMPIFailure, func(t *testing.T, args string) (*job, []func()) {
		s := newSite(t, horovodImage, "host1", "host2", "host3", "host4")
		words := append(exampleWords(t, "hosts/shared.sh", sharedKeys(t)), strings.Fields(args)...)
		var start []func()
		for i := range s.hosts {
			start = append(start, func() { s.run(t, i, words...) })
		}
		return s.job, start
	})
	// The other machines may keep the command that started sshd: paiinit runs only the command of the first one.
	t.Run("sshd", func(t *testing.T) {
		s := newSite(t, horovodImage, "host1", "host2", "host3", "host4")
		words := exampleWords(t, "hosts/shared.sh", sharedKeys(t))
		s.run(t, 0, words...)
		sshd := append(slices.Clone(words[:slices.Index(words, "IMAGE")+1]),
			"bash", "-c", "/usr/sbin/sshd -p 12345; sleep infinity")
		for i := range s.hosts[1:] {
			s.run(t, 1+i, sshd...)
		}
		require.Equal(t, slices.Repeat([]int{0}, 4), s.wait(t, documentTime))
		out, _ := s.output(t, 0)
		require.Contains(t, out, done)
		require.NotContains(t, out, "ssh login refused") // rank 0 also tries docker0's address, which is its own
	})
}

// TestHorovodInDockerAlone: Horovod in Docker on one machine, without a host list, secret or privilege.
func TestHorovodInDockerAlone(t *testing.T) {
	t.Parallel()
	done := "allreduce over 4 ranks on 1 hosts: sum = 10, expected 10 (host1)"
	for _, tt := range []struct {
		name, args string
		status     int
	}{{"well", "", 0}, {"failing rank", "--fail 1", 3}} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t, horovodImage, "host1")
			s.run(t, 0, append(exampleWords(t, "hosts/one.sh", ""), strings.Fields(tt.args)...)...)
			require.Equal(t, []int{tt.status}, s.wait(t, documentTime))
			out, _ := s.output(t, 0)
			if tt.status == 0 {
				require.Contains(t, out, done)
			}
			require.NotContains(t, out, "warning:")
		})
	}
	t.Run("stopped container", func(t *testing.T) {
		s := newSite(t, horovodImage, "host1")
		s.run(t, 0, append(exampleWords(t, "hosts/one.sh", ""), "--sleep", "1000")...)
		s.follow(t, 0, done, 1)
		_, err := docker(t.Context(), "stop", "--time", "30", s.containers[0])
		require.NoError(t, err)
		require.Equal(t, []int{143}, s.wait(t, documentTime))
	})
}

// typed returns the command line that users of examples/hosts/shell.sh type.
func typed(t *testing.T) string {
	t.Helper()
	script, err := os.ReadFile(filepath.Join(root, "examples", "hosts", "shell.sh"))
	require.NoError(t, err)
	for line := range strings.Lines(string(script)) {
		if command, ok := strings.CutPrefix(line, "#   "); ok {
			return machineSlots.Replace(strings.TrimSpace(command))
		}
	}
	require.FailNow(t, "no command line in shell.sh")
	return ""
}

const prompt = "root@host1:/examples# "

// atPrompt starts the job of examples/hosts/shell.sh, whose first container has a terminal, and waits for the prompt.
func atPrompt(t *testing.T) (*site, *terminal) {
	t.Helper()
	s := newSite(t, horovodImage, "host1", "host2", "host3", "host4")
	words := exampleWords(t, "hosts/shell.sh", sharedKeys(t))
	shell := s.runOnTerminal(t, 0, words...)
	for i := range s.hosts[1:] {
		s.run(t, 1+i, words...)
	}
	shell.see(t, prompt)
	return s, shell
}

// TestHorovodInDockerShell: a user works in the shell of the first container. The others wait until that shell exits.
func TestHorovodInDockerShell(t *testing.T) {
	t.Parallel()
	const done = "sum = 10, expected 10 (host1, host2, host3, host4)"
	for _, status := range []int{0, 7} {
		t.Run(fmt.Sprintf("exit %d", status), func(t *testing.T) {
			s, shell := atPrompt(t)
			for range 2 {
				shell.keys(t, typed(t)+"\r")
				shell.see(t, done)
				shell.see(t, prompt)
			}
			shell.keys(t, fmt.Sprintf("exit %d\r", status))
			require.Equal(t, slices.Repeat([]int{status}, 4), s.wait(t, documentTime))
		})
	}
	// Ctrl-C ends the foreground command on all hosts, but not the shell or the job.
	t.Run("Ctrl-C", func(t *testing.T) {
		s, shell := atPrompt(t)
		shell.keys(t, typed(t)+" --sleep 1000\r")
		shell.see(t, done)
		top, err := docker(t.Context(), "top", s.containers[3])
		require.NoError(t, err)
		require.Contains(t, top, "train.py")
		shell.keys(t, "\x03")
		shell.see(t, prompt)
		gone := func() bool {
			top, err := docker(t.Context(), "top", s.containers[3])
			return err == nil && !strings.Contains(top, "train.py")
		}
		require.Eventually(t, gone, documentTime, 100*time.Millisecond)
		shell.keys(t, "echo status=$?\r")
		shell.see(t, "status=1\r\n")
		shell.see(t, prompt)
		shell.keys(t, typed(t)+"\r")
		shell.see(t, done)
		shell.see(t, prompt)
		shell.keys(t, "exit 0\r")
		require.Equal(t, slices.Repeat([]int{0}, 4), s.wait(t, documentTime))
	})
	// Stopping a machine ends the job. A shell at its prompt ignores SIGTERM, so paiinit kills it with SIGKILL.
	for at, status := range map[string]int{"prompt": 137, "mpirun": 143} {
		t.Run("stopped at "+at, func(t *testing.T) {
			s, shell := atPrompt(t)
			if at == "mpirun" {
				shell.keys(t, typed(t)+" --sleep 1000\r")
				shell.see(t, done)
			}
			_, err := docker(t.Context(), "stop", "--time", "30", s.containers[3])
			require.NoError(t, err)
			require.Equal(t, slices.Repeat([]int{status}, 4), s.wait(t, documentTime))
		})
	}
	t.Run("lost at prompt", func(t *testing.T) {
		s, _ := atPrompt(t)
		_, err := docker(t.Context(), "kill", s.containers[3])
		require.NoError(t, err)
		require.Equal(t, []int{75, 75, 75, 137}, s.wait(t, documentTime))
	})
	// On other terminals, and without a shell, Ctrl-C ends the job.
	t.Run("Ctrl-C elsewhere", func(t *testing.T) {
		s := newSite(t, horovodImage, "host1", "host2", "host3", "host4")
		words := exampleWords(t, "hosts/shell.sh", sharedKeys(t))
		shell, other := s.runOnTerminal(t, 0, words...), s.runOnTerminal(t, 1, words...)
		s.run(t, 2, words...)
		s.run(t, 3, words...)
		shell.see(t, prompt)
		shell.keys(t, typed(t)+" --sleep 1000\r")
		shell.see(t, done)
		other.keys(t, "\x03")
		require.Equal(t, slices.Repeat([]int{130}, 4), s.wait(t, documentTime))
	})
	t.Run("Ctrl-C while waiting", func(t *testing.T) {
		s := newSite(t, horovodImage, "host1", "host2", "host3", "host4")
		words := exampleWords(t, "hosts/shell.sh", sharedKeys(t))
		first, second := s.runOnTerminal(t, 0, words...), s.runOnTerminal(t, 1, words...)
		first.see(t, "2 of 4")
		second.see(t, "of 4")
		second.keys(t, "\x03")
		require.Equal(t, []int{130, 130}, s.wait(t, documentTime))
	})
	t.Run("Ctrl-C without a shell", func(t *testing.T) {
		s := newSite(t, horovodImage, "host1", "host2", "host3", "host4")
		words := append(exampleWords(t, "hosts/shared.sh", sharedKeys(t)), "--sleep", "1000")
		first := s.runOnTerminal(t, 0, words...)
		for i := range s.hosts[1:] {
			s.run(t, 1+i, words...)
		}
		first.see(t, done)
		first.keys(t, "\x03")
		require.Equal(t, slices.Repeat([]int{1}, 4), s.wait(t, documentTime)) // mpirun's own status
	})
	// One machine: no list, no secret, and the same prompt.
	t.Run("one machine", func(t *testing.T) {
		s := newSite(t, horovodImage, "host1")
		words := exampleWords(t, "hosts/one.sh", "")
		at := slices.Index(words, "IMAGE")
		shell := s.runOnTerminal(t, 0, words[:at+1]...)
		for range 2 {
			shell.see(t, prompt)
			shell.keys(t, strings.Join(words[at+1:], " ")+"\r")
			shell.see(t, "sum = 10, expected 10 (host1)")
		}
		shell.see(t, prompt)
		shell.keys(t, "exit 7\r")
		require.Equal(t, []int{7}, s.wait(t, documentTime))
	})
}
