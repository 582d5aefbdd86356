package pid1_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/paiinit/paiinit/pid1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestStatus(t *testing.T) {
	each(t, places, func(t *testing.T, where place) {
		codes := []int{0, 1, 2, 70, 126, 127, 143, 255}
		if where == subreaper {
			codes = codes[:0]
			for code := range 256 {
				codes = append(codes, code)
			}
		}
		next := make(chan int)
		var workers sync.WaitGroup
		for range 4 {
			workers.Go(func() {
				for code := range next {
					r := where.command(t, preparation{}, "status", strconv.Itoa(code))
					err := r.Run()
					assert.Equal(t, code, r.ProcessState.ExitCode(), "%v", err)
					assert.Empty(t, r.stderr.String())
				}
			})
		}
		for _, code := range codes {
			next <- code
		}
		close(next)
		workers.Wait()
	})
}

func TestStatusOutOfRange(t *testing.T) {
	for _, code := range []int{-1, 256, 512} {
		status, _, stderr := subreaper.run(t, preparation{}, "status", strconv.Itoa(code))
		require.Equal(t, pid1.StatusCrash, status)
		require.Equal(t, fmt.Sprintf(
			"paiinit: pid1: the agent returned %d, which is not an exit status\n", code), stderr)
	}
}

func TestSignalsReachTheAgent(t *testing.T) {
	each(t, places, func(t *testing.T, where place) {
		r := where.start(t, preparation{}, "signals")
		require.Equal(t, strconv.FormatBool(where.init), strings.Fields(r.line())[2])

		for n := 1; n <= 64; n++ {
			sig := syscall.Signal(n)
			switch sig {
			case unix.SIGKILL, unix.SIGSTOP, unix.SIGTERM, // TERM ends the agent: it comes last
				32, 33, 34: // the C library's
			case unix.SIGCHLD, unix.SIGPIPE, unix.SIGURG, unix.SIGPROF, unix.SIGXFSZ:
				// Not forwarded, as the next signal shows.
				r.signal(sig)
			case unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU:
				r.signal(sig)
				require.Equal(t, strconv.Itoa(n), r.line())
				if !where.init {
					var info unix.Siginfo
					require.NoError(t, unix.Waitid(unix.P_PID, r.Process.Pid, &info, unix.WSTOPPED, nil))
					r.signal(unix.SIGCONT)
					require.Equal(t, strconv.Itoa(int(unix.SIGCONT)), r.line())
				}
			default:
				r.signal(sig)
				require.Equal(t, strconv.Itoa(n), r.line())
			}
		}
		r.signal(unix.SIGTERM)
		require.Equal(t, "15", r.line())
		status, rest := r.end()
		require.Equal(t, 0, status)
		require.Empty(t, rest)
		require.Empty(t, r.stderr.String())
	})
}

// The job's timers are as precise as without this package. The agent's are not.
func TestTimerSlack(t *testing.T) {
	own, err := os.ReadFile("/proc/self/timerslack_ns")
	require.NoError(t, err)
	each(t, places, func(t *testing.T, where place) {
		r := where.start(t, preparation{}, "slack")
		require.Equal(t, "1000000", r.line())
		require.Equal(t, strings.TrimSpace(string(own)), r.line())
		status, _ := r.end()
		require.Equal(t, 0, status)
	})
}

// A signal right after the start is pending before Main runs. It is SIGUSR1, because the Go runtime unblocks SIGTERM.
func TestSignalBeforeTheAgentIsUp(t *testing.T) {
	each(t, places, func(t *testing.T, where place) {
		r := where.start(t, preparation{Pending: int(unix.SIGUSR1)}, "signals")
		require.Contains(t, r.line(), "ready")
		require.Equal(t, strconv.Itoa(int(unix.SIGUSR1)), r.line())
		r.signal(unix.SIGTERM)
		status, _ := r.end()
		require.Equal(t, 0, status)
	})
}

// The terminal sends its signals to the whole process group. The agent must see them once.
func TestSignalToTheGroup(t *testing.T) {
	r := subreaper.start(t, preparation{}, "signals")
	r.line()
	for _, sig := range []syscall.Signal{
		unix.SIGINT, unix.SIGQUIT, unix.SIGHUP, unix.SIGUSR1, unix.SIGWINCH, unix.SIGTERM,
	} {
		require.NoError(t, unix.Kill(-r.Process.Pid, sig))
		require.Equal(t, strconv.Itoa(int(sig)), r.line())
	}
	status, rest := r.end()
	require.Equal(t, 0, status)
	require.Empty(t, rest)
}

func TestSignalToTheAgentIsDropped(t *testing.T) {
	r := subreaper.start(t, preparation{}, "signals")
	agent, err := strconv.Atoi(strings.Fields(r.line())[1])
	require.NoError(t, err)
	for _, sig := range []syscall.Signal{
		unix.SIGTERM, unix.SIGINT, unix.SIGQUIT, unix.SIGHUP, unix.SIGABRT, unix.SIGPIPE, unix.SIGTSTP, unix.SIGUSR1,
		40,
	} {
		require.NoError(t, unix.Kill(agent, sig))
	}
	r.signal(unix.SIGUSR2)
	require.Equal(t, strconv.Itoa(int(unix.SIGUSR2)), r.line())

	// CONT is the exception: it wakes the agent.
	require.NoError(t, unix.Kill(agent, unix.SIGSTOP))
	r.signal(unix.SIGCONT)
	require.Equal(t, strconv.Itoa(int(unix.SIGCONT)), r.line())
	r.signal(unix.SIGTERM)
	status, rest := r.end()
	require.Equal(t, 0, status)
	require.Equal(t, "15\n", rest)
}

// In a session without a shell, a stopped process would never continue.
func TestStopInAnOrphanedGroup(t *testing.T) {
	r := subreaper.command(t, preparation{}, "signals")
	r.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	r.Stdin = strings.NewReader("")
	r.begin()
	r.line()
	for _, sig := range []syscall.Signal{unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU, unix.SIGTSTP, unix.SIGTERM} {
		r.signal(sig)
		require.Equal(t, strconv.Itoa(int(sig)), r.line())
	}
	status, _ := r.end()
	require.Equal(t, 0, status)
}

func TestFirstProcessKilled(t *testing.T) {
	r := subreaper.start(t, preparation{}, "signals")
	r.line()
	r.signal(unix.SIGKILL)
	require.Equal(t, "15", r.line())
	require.Error(t, r.Wait())
}

func TestOrphansAreReaped(t *testing.T) {
	each(t, places, func(t *testing.T, where place) {
		r := where.start(t, preparation{}, "hold", "i=0; while [ $i -lt 1000 ]; do (: &); i=$((i+1)); done", "4")
		require.Equal(t, "ready 0", r.line())
		r.onlyTheAgentIsLeft()
		r.signal(unix.SIGTERM)
		status, _ := r.end()
		require.Equal(t, 4, status)
	})
}

// onlyTheAgentIsLeft waits until the init has no other children.
func (r *running) onlyTheAgentIsLeft() {
	r.t.Helper()
	require.Eventually(r.t, func() bool { return len(r.children()) == 1 }, time.Minute, 20*time.Millisecond)
}

func TestCommandsKeepTheirStatus(t *testing.T) {
	each(t, places, func(t *testing.T, where place) {
		count := 200
		if where == subreaper {
			count = 2000
		}
		r := where.start(t, preparation{}, "commands", strconv.Itoa(count))
		require.Equal(t, "wrong 0", r.line())
		r.onlyTheAgentIsLeft()
		r.signal(unix.SIGTERM)
		status, _ := r.end()
		require.Equal(t, 0, status)
	})
}

// TestStacks: an agent that was started with GOTRACEBACK prints the stacks of its goroutines if it is asked to.
func TestStacks(t *testing.T) {
	each(t, places, func(t *testing.T, where place) {
		r := where.start(t, preparation{Environ: []string{"GOTRACEBACK=all"}}, "hold", "true", "0")
		require.Equal(t, "ready 0", r.line())
		r.onlyTheAgentIsLeft()
		require.NoError(t, unix.Kill(r.children()[0], unix.SIGSEGV))
		status, _ := r.end()
		require.Equal(t, pid1.StatusCrash, status)
		require.Contains(t, r.stderr.String(), "pid1.second(")
	})
}

func TestNothingIsLeft(t *testing.T) {
	ends := []struct {
		how    string
		status int
		stderr string
	}{
		{"5", 5, ""},
		{"panic", pid1.StatusCrash, "exit status 2"},
		{"fault", pid1.StatusCrash, "exit status 2"}, // even though SIGSEGV is caught
		{"kill", pid1.StatusCrash, "killed (signal 9)"},
		{"exit", pid1.StatusCrash, "exit status 3"},
	}
	each(t, places, func(t *testing.T, where place) {
		for i, end := range ends {
			t.Run(end.how, func(t *testing.T) {
				word := fmt.Sprintf("1%07d%d", os.Getpid(), i) // how long to sleep; it also identifies the sleepers
				r := where.start(t, preparation{}, "hold", strings.ReplaceAll(`
					exec >/dev/null 2>&1
					sleep WORD &
					(sleep WORD &)
					setsid sleep WORD &
					setsid sh -c 'trap "" TERM HUP INT; (setsid sleep WORD &); sleep WORD; :' &
					exit 0`, "WORD", word), end.how)
				t.Cleanup(func() {
					for _, pid := range sleepers(t, word) {
						_ = unix.Kill(pid, unix.SIGKILL)
					}
				})
				require.Equal(t, "ready 0", r.line())
				require.Eventually(t, func() bool { return len(sleepers(t, word)) == 5 }, time.Minute,
					20*time.Millisecond)

				r.signal(unix.SIGTERM)
				status, _ := r.end()
				require.Equal(t, end.status, status)
				require.Empty(t, sleepers(t, word))
				if end.stderr == "" {
					require.Empty(t, r.stderr.String())
				} else {
					require.Contains(t, r.stderr.String(),
						"paiinit: pid1: the agent ended without a result: "+
							end.stderr+"; the rest of the job was killed\n",
					)
				}
			})
		}
	})
}

// The first process writes its message to a pipe that no process reads, or whose reading end is closed.
func TestStandardErrorBlockedOrBroken(t *testing.T) {
	for _, blocked := range []bool{true, false} {
		t.Run(fmt.Sprintf("blocked=%v", blocked), func(t *testing.T) {
			read, write, err := os.Pipe()
			require.NoError(t, err)
			defer func() { _ = read.Close() }()
			if blocked {
				require.NoError(t, write.SetWriteDeadline(time.Now().Add(time.Hour)))
				fill(t, write)
			} else {
				require.NoError(t, read.Close())
			}
			r := subreaper.command(t, preparation{}, "kill")
			r.Stderr = write
			require.NoError(t, r.Start())
			require.NoError(t, write.Close())
			require.Equal(t, pid1.StatusCrash, r.wait(r.Wait()))
		})
	}
}

// fill writes to the pipe until it is full.
func fill(t *testing.T, pipe *os.File) {
	t.Helper()
	raw, err := pipe.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		for _, size := range []int{4096, 1} {
			for err = nil; err == nil; {
				_, err = unix.Write(int(fd), make([]byte, size))
			}
		}
	}))
	require.ErrorIs(t, err, unix.EAGAIN)
}

func TestSecrets(t *testing.T) {
	const canary, second = "canary=in a coal mine\x01é", "another canary"
	each(t, places, func(t *testing.T, where place) {
		r := where.start(t, preparation{Environ: []string{
			"PAIINIT_SECRET=" + canary, // twice, as a script might set it
			"BEFORE=1", "OTHER_SECRET=" + second, "PAIINIT_SECRET=" + canary, "AFTER=2",
		}}, "agent")
		var secrets map[string][]byte
		require.NoError(t, json.Unmarshal([]byte(r.line()), &secrets))
		require.Equal(t, map[string][]byte{"PAIINIT_SECRET": []byte(canary), "OTHER_SECRET": []byte(second)}, secrets)

		var environ []string
		require.NoError(t, json.Unmarshal([]byte(r.line()), &environ))
		require.Contains(t, environ, "BEFORE=1")
		require.Contains(t, environ, "AFTER=2")
		for _, entry := range environ {
			require.NotRegexp(t, "SECRET|canary|PAIINIT_PID1", entry)
		}
		require.Equal(t, "ready", r.line())

		tree := append([]int{r.Process.Pid}, processes(t).Below(r.Process.Pid)...)
		for i := range tree {
			for _, file := range []string{"environ", "cmdline"} {
				data, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", tree[i], file))
				if i < 2 && errors.Is(err, os.ErrPermission) {
					continue // neither process is dumpable: this needs CAP_SYS_PTRACE
				}
				require.NoError(t, err)
				require.NotEmpty(t, data)
				require.NotContains(t, string(data), "canary")
				require.NotContains(t, string(data), "SECRET=")
				if file == "environ" {
					require.Contains(t, string(data), "BEFORE=1\x00")
					require.Contains(t, string(data), "AFTER=2\x00")
				}
			}
		}
		require.GreaterOrEqual(t, len(tree), 3)
		r.signal(unix.SIGTERM)
		status, _ := r.end()
		require.Equal(t, 0, status)
		require.Empty(t, r.stderr.String())
	})
}

func TestSecretSize(t *testing.T) {
	for _, test := range []struct {
		secret string
		want   map[string][]byte
	}{
		{"NOT_PAIINIT_SECRET=x", map[string][]byte{}},
		{"PAIINIT_SECRET=", map[string][]byte{"PAIINIT_SECRET": {}}},
		{"PAIINIT_SECRET=x", map[string][]byte{"PAIINIT_SECRET": []byte("x")}},
		{
			"PAIINIT_SECRET=" + strings.Repeat("x", 4096),
			map[string][]byte{"PAIINIT_SECRET": []byte(strings.Repeat("x", 4096))},
		},
	} {
		r := subreaper.start(t, preparation{Environ: []string{test.secret}}, "agent")
		var secrets map[string][]byte
		require.NoError(t, json.Unmarshal([]byte(r.line()), &secrets))
		require.Equal(t, test.want, secrets)
		r.signal(unix.SIGTERM)
		_, _ = r.end()
	}

	status, stdout, stderr := subreaper.run(t,
		preparation{Environ: []string{"PAIINIT_SECRET=" + strings.Repeat("x", 4097)}}, "status", "0")
	require.Equal(t, pid1.StatusConfig, status)
	require.Empty(t, stdout)
	require.Equal(t, "paiinit: pid1: PAIINIT_SECRET has 4097 bytes; a secret may have at most 4096\n", stderr)
}

// The pipes to the agent must not get the numbers of closed standard files.
func TestStandardFilesClosed(t *testing.T) {
	for mask := range 8 {
		var closed []int
		for fd := range 3 {
			if mask&(1<<fd) != 0 {
				closed = append(closed, fd)
			}
		}
		p := preparation{Close: closed, Environ: []string{"PAIINIT_SECRET=x"}}
		status, _, _ := subreaper.run(t, p, "standard")
		require.Equal(t, 0, status, "closed: %v", closed)
		status, _, _ = subreaper.run(t, p, "sh", "echo x; echo y >&2; exit 6")
		require.Equal(t, 6, status, "closed: %v", closed)
	}
}

func TestStandardFilesPassThrough(t *testing.T) {
	each(t, places, func(t *testing.T, where place) {
		r := where.command(t, preparation{}, "sh", "cat; echo error >&2; cat <&3 >&2")
		r.Stdin = strings.NewReader("input")
		read, write, err := os.Pipe()
		require.NoError(t, err)
		_, err = write.WriteString("extra")
		require.NoError(t, err)
		require.NoError(t, write.Close())
		r.ExtraFiles = []*os.File{read}
		out, err := r.Output()
		require.NoError(t, read.Close())
		require.Equal(t, 0, r.wait(err))
		require.Equal(t, "input", string(out))
		require.Equal(t, "error\nextra", r.stderr.String())
	})
}

// The job does not inherit the pipes between the two processes.
func TestJobGetsNoOtherFiles(t *testing.T) {
	want, err := exec.Command("/bin/ls", "/proc/self/fd").Output() // the test's parent may have left some open
	require.NoError(t, err)
	status, out, _ := subreaper.run(t, preparation{Environ: []string{"PAIINIT_SECRET=x"}}, "exec", "/bin/ls",
		"/proc/self/fd")
	require.Equal(t, 0, status)
	require.Equal(t, string(want), out)
}

// The job inherits our signals and limits, as far as the Go runtime keeps them.
func TestInherited(t *testing.T) {
	bit := func(signals ...syscall.Signal) string {
		var mask uint64
		for _, sig := range signals {
			mask |= 1 << (sig - 1)
		}
		return fmt.Sprintf("%016x", mask)
	}
	numbers := func(signals ...syscall.Signal) (n []int) {
		for _, sig := range signals {
			n = append(n, int(sig))
		}
		return n
	}
	ignored := []syscall.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU}
	blocked := []syscall.Signal{unix.SIGUSR1, unix.SIGWINCH, unix.SIGTTIN}
	each(t, places, func(t *testing.T, where place) {
		status := func(p preparation) string {
			_, out, _ := where.run(t, p, "exec", "/bin/grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status")
			// make starts its commands by posix_spawn, which ignores the two signals that glibc reserves.
			return regexp.MustCompile(`[0-9a-f]{16}`).ReplaceAllStringFunc(out, func(set string) string {
				n, err := strconv.ParseUint(set, 16, 64)
				require.NoError(t, err)
				return fmt.Sprintf("%016x", n&^(1<<(32-1)|1<<(33-1)))
			})
		}
		require.Equal(t, "SigBlk:\t"+bit()+"\nSigIgn:\t"+bit()+"\n", status(preparation{}))
		require.Equal(t, "SigBlk:\t"+bit(blocked...)+"\nSigIgn:\t"+bit(ignored...)+"\n",
			status(preparation{Ignore: numbers(ignored...), Block: numbers(blocked...)}))

		_, out, _ := where.run(t, preparation{NoFile: 256}, "sh", "ulimit -Sn; ulimit -Hn")
		require.Equal(t, "256\n1024\n", out)
	})
}

func TestNohup(t *testing.T) {
	r := subreaper.start(t, preparation{Ignore: []int{int(unix.SIGHUP)}}, "signals")
	r.line()
	r.signal(unix.SIGHUP)
	r.signal(unix.SIGTERM)
	require.Equal(t, "15", r.line())
	status, _ := r.end()
	require.Equal(t, 0, status)
}

func TestWithoutProc(t *testing.T) {
	each(t, initPlaces, func(t *testing.T, where place) {
		p := preparation{Proc: "hide", Environ: []string{"PAIINIT_SECRET=canary"}}
		for _, argv0 := range []string{binary(), filepath.Base(binary())} {
			p.Argv0 = argv0
			r := where.command(t, p, "sh",
				`[ -e /proc/self ] && exit 1; (sleep 1000 &) ; echo "${PAIINIT_SECRET-none}"; exit 8`)
			r.Env = append(r.Env, "PATH="+filepath.Dir(binary())+":"+os.Getenv("PATH"))
			out, err := r.Output()
			require.Equal(t, 8, r.wait(err), "%s", &r.stderr)
			require.Equal(t, "none\n", string(out))
			require.NotContains(t, r.stderr.String(), "paiinit:") // the race detector warns without /proc
		}

		p.Argv0 = "no-such-program"
		status, _, stderr := where.run(t, p, "status", "0")
		require.Equal(t, pid1.StatusCrash, status)
		require.Regexp(t, `(?m)^paiinit: pid1: starting this program again: .*no-such-program.*$`, stderr)
	})
}

// /proc belongs to the namespace, as in a container.
func TestOwnProc(t *testing.T) {
	each(t, initPlaces, func(t *testing.T, where place) {
		status, out, stderr := where.run(t, preparation{Proc: "mount"}, "sh",
			"readlink /proc/$PPID/exe; cat /proc/1/comm /proc/$PPID/comm; exit 3")
		require.Equal(t, 3, status, stderr)
		name := filepath.Base(binary())
		name = name[:min(len(name), 15)] // TASK_COMM_LEN
		require.Equal(t, binary()+"\n"+name+"\n"+name+"\n", out)
	})
}

func TestNeitherPID1NorSubreaper(t *testing.T) {
	status, _, stderr := subreaper.run(t, preparation{NoSubreaper: true}, "status", "3")
	require.Equal(t, 3, status)
	require.Equal(t, "paiinit: pid1: cannot become a child subreaper: operation not permitted; "+
		"not being PID 1, paiinit can neither reap nor end daemons that the job leaves behind\n", stderr)

	each(t, initPlaces, func(t *testing.T, where place) {
		status, _, stderr := where.run(t, preparation{NoSubreaper: true}, "status", "3")
		require.Equal(t, 3, status)
		require.Empty(t, stderr)
	})
}

// The first process, and the agent of a job that runs, leave the job's directory and release the memory of their start.
func TestProcessesKeepLittle(t *testing.T) {
	each(t, places, func(t *testing.T, where place) {
		r := where.start(t, preparation{}, "settle")
		r.line()
		children := r.children()
		require.Len(t, children, 1)
		directory := func(pid int) string {
			dir, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
			require.NoError(t, err)
			return dir
		}
		files := func(pid int) (kB int) {
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			require.NoError(t, err)
			_, value, found := strings.Cut(string(status), "RssFile:")
			require.True(t, found)
			_, err = fmt.Sscan(value, &kB)
			require.NoError(t, err)
			return kB
		}
		own, err := os.Getwd()
		require.NoError(t, err)
		require.Equal(t, own, directory(children[0]))
		require.Eventually(t, func() bool { // shed runs later than the agent's start
			return directory(r.Process.Pid) == "/" && files(r.Process.Pid) < files(children[0])*3/4
		}, time.Minute, 10*time.Millisecond, "%d kB, the agent %d kB", files(r.Process.Pid), files(children[0]))
		before := files(children[0])
		r.signal(unix.SIGUSR1)
		require.Eventually(t, func() bool {
			return directory(children[0]) == "/" && files(children[0]) < before*3/4
		}, time.Minute, 10*time.Millisecond, "the agent had %d kB, now %d kB", before, files(children[0]))
		r.signal(unix.SIGTERM)
		status, _ := r.end()
		require.Equal(t, 0, status)
		require.Empty(t, r.stderr.String())
	})
}

// A paiinit inside the job is a first process, even if its environment has the variable.
func TestNested(t *testing.T) {
	for _, value := range []string{"", "x", "1 1 4 5", "1 1 4 5 -1 -1"} {
		status, _, stderr := subreaper.run(t, preparation{}, "nested", value)
		require.Equal(t, pid1.StatusCrash, status, stderr)
		require.Equal(t, 1, strings.Count(stderr, "paiinit: pid1: the agent ended without a result"), stderr)
	}
}
