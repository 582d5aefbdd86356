package hang

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

const role = "HANG_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "first":
		agent := exec.Command(os.Args[0])
		agent.Env = append(os.Environ(), role+"=agent")
		agent.Stderr = os.Stderr
		ready, err := agent.StdoutPipe()
		if err == nil {
			err = agent.Start()
		}
		if err == nil {
			_, err = ready.Read(make([]byte, 1))
		}
		if err != nil {
			panic(err)
		}
		sleep := exec.Command("sleep", "1000")
		sleep.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := sleep.Start(); err != nil {
			panic(err)
		}
		fmt.Println(agent.Process.Pid, sleep.Process.Pid)
		_ = agent.Wait()
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	case "agent":
		fmt.Println("ready")
		<-make(chan int)
	}
	goleak.VerifyTestMain(m)
}

// TestReport: the report has every process of the tree, also a stopped one, the second one of the program writes its
// stacks, and the others stay.
func TestReport(t *testing.T) {
	first := exec.Command(os.Args[0])
	first.Env = append(os.Environ(), role+"=first", "GOTRACEBACK=single")
	var stderr bytes.Buffer
	first.Stderr = &stderr
	stdin, err := first.StdinPipe()
	require.NoError(t, err)
	stdout, err := first.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, first.Start())
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	var agent, sleep int
	_, err = fmt.Sscan(line, &agent, &sleep)
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(agent, syscall.SIGSTOP))

	sleeps := fmt.Sprintf(`(?m)^ *%d +%d [RS] \S+ +ran \d+ waited \d+: sleep 1000$`, sleep, first.Process.Pid)
	processes := Processes(Container{"alpha", first.Process.Pid})
	require.Equal(t, 3, strings.Count(processes, "\n"))
	require.Regexp(t, sleeps, processes)

	report := Report(Container{"alpha", first.Process.Pid})

	require.Regexp(t, `^alpha has not ended:\n`, report)
	require.Regexp(t, fmt.Sprintf(`(?m)^ *%d +%d [RS] `, first.Process.Pid, os.Getpid()), report)
	require.Regexp(t, fmt.Sprintf(`(?m)^ *%d +%d [RST] `, agent, first.Process.Pid), report)
	require.Regexp(t, sleeps, report)
	require.NoError(t, syscall.Kill(sleep, 0))
	require.NoError(t, stdin.Close())
	require.NoError(t, first.Wait())
	require.Contains(t, stderr.String(), "hang.TestMain(")
}

// TestReportOfTheEnded: nothing is known of a process that is gone.
func TestReportOfTheEnded(t *testing.T) {
	ended := exec.Command("true")
	require.NoError(t, ended.Run())
	require.Empty(t, Report(Container{"alpha", ended.Process.Pid}))
	require.Empty(t, Processes(Container{"alpha", ended.Process.Pid}))
}

func TestDescriptors(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	open, err := Descriptors(os.Getpid())
	require.NoError(t, err)
	text := strings.Join(open, "\n")
	require.Regexp(t, `(?m)^0 \S+`, text)
	port := l.Addr().(*net.TCPAddr).Port
	require.Regexp(t, fmt.Sprintf(`(?m)^\d+ socket:\[\d+\] tcp 0100007F:%04X 00000000:0000 0A$`, port), text)
	_, err = Descriptors(-1)
	require.ErrorIs(t, err, os.ErrNotExist)
}
