package pid1_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/integration/testsignals"
	"github.com/paiinit/paiinit/internal/proc"
	"github.com/paiinit/paiinit/pid1"
)

// The test binary is also the program under test. TestMain runs it in three stages, each the same process after an
// exec: prepare sets up what the process is started with, pend leaves a signal pending, and init is pid1.Main, whose
// agent is one of the roles in agents_test.go, chosen by the first argument.
const stageVar = "PID1_TEST_STAGE"

func TestMain(m *testing.M) {
	switch stage := os.Getenv(stageVar); {
	case stage == "init":
		os.Exit(pid1.Main(os.Environ(), []string{"PAIINIT_SECRET", "OTHER_SECRET"}, role))
	case strings.HasPrefix(stage, "pend "):
		sig, err := strconv.Atoi(strings.TrimPrefix(stage, "pend "))
		must(err)
		must(unix.Kill(os.Getpid(), syscall.Signal(sig))) // blocked in all threads: see preparation.do
		become("init", os.Args, os.Environ())
	case stage != "":
		var p preparation
		must(json.Unmarshal([]byte(stage), &p))
		p.do()
	default:
		testsignals.Default()
		os.Exit(m.Run())
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// become executes the next stage.
func become(stage string, argv, environ []string) {
	var next []string
	for _, entry := range environ {
		if !strings.HasPrefix(entry, stageVar+"=") {
			next = append(next, entry)
		}
	}
	must(syscall.Exec(binary(), argv, append(next, stageVar+"="+stage)))
}

// binary is the path of the test binary, also where /proc is hidden.
func binary() string {
	if path := os.Getenv("PID1_TEST_BINARY"); path != "" {
		return path
	}
	path, err := os.Executable()
	must(err)
	return path
}

// preparation is what the process does before it becomes the init.
type preparation struct {
	Proc        string   // "mount": the namespace's own /proc, "hide": nothing at /proc
	Close       []int    // file descriptors
	Ignore      []int    // signals
	Block       []int    // signals
	Pending     int      // a signal that is already pending, as if it came right after the start
	NoSubreaper bool     // prctl(PR_SET_CHILD_SUBREAPER) fails with EPERM
	NoFile      uint64   // soft limit
	Environ     []string // before the environment; exec.Cmd would remove duplicates
	Argv0       string
}

func (p preparation) do() {
	runtime.LockOSThread() // the signal mask and the filter belong to the thread
	path := binary()
	must(os.Setenv("PID1_TEST_BINARY", path))
	if p.Proc != "" {
		must(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
		kind := map[string]string{"mount": "proc", "hide": "tmpfs"}[p.Proc]
		must(unix.Mount(kind, "/proc", kind, 0, ""))
	}
	for _, sig := range p.Ignore {
		signal.Ignore(syscall.Signal(sig))
	}
	block := p.Block
	stage := "init"
	if p.Pending != 0 {
		block = append(block, p.Pending)
		stage = "pend " + strconv.Itoa(p.Pending)
	}
	var mask unix.Sigset_t
	for _, sig := range block {
		mask.Val[0] |= 1 << (sig - 1)
	}
	must(unix.PthreadSigmask(unix.SIG_BLOCK, &mask, nil))
	if p.NoFile != 0 {
		must(unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: p.NoFile, Max: 4 * p.NoFile}))
	}
	if p.NoSubreaper {
		forbidSubreaper()
	}
	argv := os.Args
	if p.Argv0 != "" {
		argv = append([]string{p.Argv0}, argv[1:]...)
	}
	for _, fd := range p.Close {
		must(unix.Close(fd))
	}
	become(stage, argv, append(p.Environ, os.Environ()...))
}

// forbidSubreaper installs a seccomp filter such as a container runtime might have.
func forbidSubreaper() {
	const (
		load, equal, ret = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K,
			unix.BPF_RET | unix.BPF_K
		nr, arg0 = 0, 16 // offsets in struct seccomp_data, little endian
	)
	filter := []unix.SockFilter{
		{Code: load, K: nr},
		{Code: equal, K: unix.SYS_PRCTL, Jf: 3},
		{Code: load, K: arg0},
		{Code: equal, K: unix.PR_SET_CHILD_SUBREAPER, Jf: 1},
		{Code: ret, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: ret, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	must(unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	must(unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0))
}

// place is where the init runs.
type place struct {
	name  string
	flags uintptr
	init  bool // it is PID 1
}

var (
	rootNamespace = place{"PID 1, root", unix.CLONE_NEWPID | unix.CLONE_NEWNS, true}
	userNamespace = place{"PID 1, user namespace", unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWUSER, true}
	subreaper     = place{"subreaper", 0, false}
	places        = []place{rootNamespace, userNamespace, subreaper}
	initPlaces    = []place{rootNamespace, userNamespace}
)

func each(t *testing.T, places []place, test func(*testing.T, place)) {
	for _, where := range places {
		t.Run(where.name, func(t *testing.T) {
			where.need(t)
			test(t, where)
		})
	}
}

// need skips the test if processes cannot run in this place.
func (where place) need(t *testing.T) {
	t.Helper()
	if where.flags == 0 {
		return
	}
	cmd := exec.Command("/bin/true")
	cmd.SysProcAttr = where.attributes()
	if err := cmd.Run(); err != nil {
		missing(t, fmt.Sprintf("%s: no namespaces here: %v", where.name, err))
	}
}

func missing(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("PAIINIT_TEST_REQUIRE") != "" {
		t.Fatal(why)
	}
	t.Skip(why)
}

func (where place) attributes() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Cloneflags: where.flags, Setpgid: true}
	if where.flags&unix.CLONE_NEWUSER != 0 {
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	return attr
}

// running is an init that was started.
type running struct {
	*exec.Cmd
	t      *testing.T
	lines  *bufio.Reader
	stderr bytes.Buffer
}

// command returns an init that is not started. If the test fails, its standard error is shown.
func (where place) command(t *testing.T, p preparation, args ...string) *running {
	t.Helper()
	stage, err := json.Marshal(p)
	require.NoError(t, err)
	if reflect.ValueOf(p).IsZero() {
		stage = []byte("init")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	r := &running{Cmd: exec.CommandContext(ctx, binary(), args...), t: t}
	t.Cleanup(func() {
		if r.Process != nil && r.ProcessState == nil { // the test has failed
			_ = r.Process.Kill()
		}
		cancel()
	})
	// The race detector sleeps for a second at the end of every process that has more than one thread.
	r.Env = append(os.Environ(), stageVar+"="+string(stage), "GORACE=atexit_sleep_ms=0")
	r.SysProcAttr = where.attributes()
	r.Stderr = &r.stderr
	r.WaitDelay = 10 * time.Second // if a leftover process holds standard error
	return r
}

// start starts the init. line reads its standard output.
func (where place) start(t *testing.T, p preparation, args ...string) *running {
	t.Helper()
	r := where.command(t, p, args...)
	r.begin()
	return r
}

// begin starts a command as place.start does.
func (r *running) begin() {
	r.t.Helper()
	out, err := r.StdoutPipe()
	require.NoError(r.t, err)
	r.lines = bufio.NewReader(out)
	require.NoError(r.t, r.Start())
}

// line returns the next line of the agent's output.
func (r *running) line() string {
	r.t.Helper()
	line, err := r.lines.ReadString('\n')
	require.NoError(r.t, err, "standard error: %s", &r.stderr)
	return strings.TrimSuffix(line, "\n")
}

func (r *running) signal(sig os.Signal) {
	r.t.Helper()
	require.NoError(r.t, r.Process.Signal(sig))
}

// end waits for the init, and returns its status and the rest of its output.
func (r *running) end() (status int, out string) {
	r.t.Helper()
	rest, err := io.ReadAll(r.lines)
	require.NoError(r.t, err)
	return r.wait(r.Wait()), string(rest)
}

// wait returns the status in an error of Run or Wait.
func (r *running) wait(err error) int {
	r.t.Helper()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(r.t, err, "standard error: %s", &r.stderr)
	}
	state := r.ProcessState.Sys().(syscall.WaitStatus)
	require.True(r.t, state.Exited(), "%v, standard error: %s", r.ProcessState, &r.stderr)
	return state.ExitStatus()
}

// run runs an init to its end.
func (where place) run(t *testing.T, p preparation, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	r := where.start(t, p, args...)
	status, stdout = r.end()
	return status, stdout, r.stderr.String()
}

// processes returns all processes of the machine, seen from the test's own namespace.
func processes(t *testing.T) proc.Table {
	t.Helper()
	all := proc.ReadAll(os.DirFS("/proc"), os.Getpid())
	require.NotEmpty(t, all)
	return all
}

// children returns the init's children, dead or alive.
func (r *running) children() (pids []int) {
	for pid, p := range processes(r.t) {
		if p.Parent == r.Process.Pid {
			pids = append(pids, pid)
		}
	}
	return pids
}

// sleepers returns the processes that were started as "sleep WORD".
func sleepers(t *testing.T, word string) (pids []int) {
	t.Helper()
	for pid := range processes(t) {
		if slices.Equal(proc.CommandLine(os.DirFS("/proc"), pid), []string{"sleep", word}) {
			pids = append(pids, pid)
		}
	}
	return pids
}
