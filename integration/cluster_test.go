package integration

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/paiinit/paiinit/integration/hang"
	"github.com/paiinit/paiinit/integration/lab"
	"github.com/paiinit/paiinit/integration/sample"
	"github.com/paiinit/paiinit/integration/testsignals"
)

const (
	path        = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	secret      = "correct horse battery staple"
	allreduce   = "examples/allreduce.py"
	waitTimeout = 3 * time.Minute // timeout of one wait, long enough on a busy machine
)

// paiinit is the binary under test; root is the repository, in which jobs start.
var paiinit, root string

func TestMain(m *testing.M) {
	lab.Main()
	testsignals.Default()
	err := sample.WaitTogether()
	dir := ""
	if err == nil {
		dir, err = os.MkdirTemp("", "paiinit-integration-")
	}
	if err == nil {
		err = build(dir)
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

// build builds the binary as released: static and without the race detector. Its version is devel also where Go could
// read another one from the checkout.
func build(dir string) (err error) {
	if root, err = filepath.Abs(".."); err != nil {
		return err
	}
	paiinit = filepath.Join(dir, "paiinit")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-tags", "urfave_cli_no_docs",
		"-ldflags", "-s -w", "-o", paiinit, "./cmd/paiinit")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building paiinit: %w\n%s", err, out)
	}
	return nil
}

// missing looks once, because it starts every program that it looks for.
var missing = sync.OnceValue(func() []string {
	return lab.Missing(
		lab.Need{Try: []string{"/usr/bin/mpirun.openmpi", "--version"}, Package: "openmpi-bin"},
		lab.Need{Try: []string{"/usr/bin/mpiexec.hydra", "--version"}, Package: "mpich"},
		lab.Need{Try: []string{"/usr/bin/python3", "-c", "import mpi4py"}, Package: "python3-mpi4py"},
		lab.Need{Try: []string{"/usr/bin/pdsh", "-V"}, Package: "pdsh"},
		lab.Need{Try: []string{"/usr/bin/rsync", "--version"}, Package: "rsync"},
		lab.Need{Try: []string{"/usr/bin/git", "--version"}, Package: "git"},
	)
})

// requireLab skips the test where the lab cannot run.
func requireLab(t *testing.T) {
	t.Helper()
	if missing := missing(); len(missing) > 0 {
		skip(t, strings.Join(missing, "; "))
	}
}

// skip skips the test because something is missing, or fails it if PAIINIT_TEST_REQUIRE is set.
func skip(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("PAIINIT_TEST_REQUIRE") != "" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// newLab creates an empty lab, and logs the output of its containers if the test fails.
func newLab(t *testing.T) *lab.Lab {
	t.Helper()
	sample.OneIn(t, 5)
	t.Parallel()
	requireLab(t)
	begin := time.Now()
	l, err := lab.New(lab.Config{})
	require.NoError(t, err)
	t.Cleanup(func() {
		running := ""
		if t.Failed() {
			running = l.Running()
		}
		require.NoError(t, l.Close())
		if t.Failed() {
			t.Log(transcript(l, begin) + "\n" + running)
		}
	})
	return l
}

// transcript merges the output of all containers in the order of time.
func transcript(l *lab.Lab, begin time.Time) string {
	var lines []lab.Line
	for _, c := range l.Containers() {
		lines = append(lines, c.Lines()...)
	}
	slices.SortStableFunc(lines, func(a, b lab.Line) int { return a.Time.Compare(b.Time) })
	var b strings.Builder
	for _, line := range lines {
		fmt.Fprintf(&b, "\n%7.3f %s | %s", line.Time.Sub(begin).Seconds(), line.Container, line.Text)
	}
	return b.String()
}

func newMachines(t *testing.T, l *lab.Lab, n int) []*lab.Machine {
	t.Helper()
	machines := make([]*lab.Machine, n)
	for i := range machines {
		m, err := l.Machine(fmt.Sprintf("node-%d", i))
		require.NoError(t, err)
		machines[i] = m
	}
	return machines
}

// host describes a container that runs paiinit.
type host struct {
	machine  *lab.Machine
	name     string            // "" = the machine's
	hostname string            // "" = the machine's
	env      map[string]string // the scheduler's variables and the test's own
	flags    []string
	binds    map[string]string
	dir      string // "" = the repository's root
	tmpfs    []string
	overlay  []string
	hosts    map[string]netip.Addr // entries of /etc/hosts
	input    bool                  // keep standard input open
}

// withInput keeps the standard input of hosts open. At EOF on its own input, MPICH 4.0.2's mpiexec dies of SIGPIPE if
// rank 0 has already ended, as a rank that runs a few milliseconds may have.
func withInput(hosts []host) []host {
	for i := range hosts {
		hosts[i].input = true
	}
	return hosts
}

// start runs paiinit with a command on the host.
func (h host) start(t *testing.T, command ...string) *lab.Container {
	t.Helper()
	c, err := h.machine.Start(h.program(command...))
	require.NoError(t, err)
	return c
}

// program runs paiinit with a command in a container without other remote shells.
func (h host) program(command ...string) lab.Program {
	env := []string{"HOME=/tmp"}
	// Tests read single attributes, and wait for steps that a healthy launch does not show by default.
	for _, kv := range []string{path, "PAIINIT_LOG_FORMAT=logfmt", "PAIINIT_LOG_LEVEL=debug", hang.Variable} {
		if name, _, _ := strings.Cut(kv, "="); h.env[name] == "" {
			env = append(env, kv)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(h.env)) {
		env = append(env, name+"="+h.env[name])
	}
	binds := map[string]string{"/run/bin/paiinit": paiinit, root: root}
	maps.Copy(binds, h.binds)
	args := append([]string{"/run/bin/paiinit"}, h.flags...)
	return lab.Program{
		Name:     h.name,
		Hostname: h.hostname,
		Args:     append(append(args, "--"), command...),
		Env:      env,
		Dir:      cmp.Or(h.dir, root),
		Binds:    binds,
		Tmpfs:    append([]string{"/job"}, h.tmpfs...), // paiinit writes DeepSpeed's host list there
		Overlay:  h.overlay,
		Hosts:    h.hosts,
		Hide:     noShell,
		Input:    h.input,
	}
}

// noShell lists programs to hide, because paiinit replaces them.
var noShell = []string{"/usr/bin/ssh", "/usr/bin/rsh", "/usr/bin/slogin", "/usr/bin/dbclient", "/usr/sbin/sshd",
	"/usr/sbin/dropbear"}

// startAll runs paiinit with the same command on every host.
func startAll(t *testing.T, hosts []host, command ...string) []*lab.Container {
	t.Helper()
	var containers []*lab.Container
	for _, h := range hosts {
		containers = append(containers, h.start(t, command...))
	}
	return containers
}

// statuses waits until every container has ended.
func statuses(t *testing.T, containers []*lab.Container) []int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	var all []int
	for _, c := range containers {
		status, err := c.Wait(ctx)
		require.NoError(t, err)
		all = append(all, status)
	}
	return all
}

// tookUntil returns the time from begin until the last of the containers logged the end of the job, as paiinit noted
// it: on a busy machine this process may read that line seconds later. After that line paiinit must leave soon. This
// process measures it from the arrival of the line, because it reads both ends equally late.
func tookUntil(t *testing.T, begin time.Time, containers []*lab.Container) time.Duration {
	t.Helper()
	var last time.Time
	for _, c := range containers {
		for _, line := range c.Lines() {
			text, ok := strings.CutPrefix(line.Text, "time=")
			if ok && line.Stderr && strings.Contains(text, `msg="the job has ended"`) {
				text, _, _ = strings.Cut(text, " ")
				logged, err := time.Parse(time.RFC3339Nano, text)
				require.NoError(t, err)
				last = slices.MaxFunc([]time.Time{last, logged}, time.Time.Compare)
				require.Less(t, c.EndedAt().Sub(line.Time), 5*time.Second, "%s stays after the end of the job", c.Name)
			}
		}
	}
	require.False(t, last.IsZero(), "no container has logged the end of the job")
	return last.Sub(begin.Round(0))
}

func waitLine(t *testing.T, c *lab.Container, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	_, err := c.WaitLine(ctx, text)
	require.NoError(t, err)
}

// same returns n equal statuses.
func same(n, status int) []int {
	return slices.Repeat([]int{status}, n)
}

// stdout returns the output of the job; stderr returns the log of paiinit and the messages of the launcher.
func stdout(c *lab.Container) string { return text(c, false) }
func stderr(c *lab.Container) string { return text(c, true) }

func text(c *lab.Container, isStderr bool) string {
	var b strings.Builder
	for _, l := range c.Lines() {
		if l.Stderr == isStderr {
			b.WriteString(l.Text + "\n")
		}
	}
	return b.String()
}

// peersHosts returns hosts that know each other by paiinit's own variables.
func peersHosts(t *testing.T, l *lab.Lab, n int) []host {
	t.Helper()
	var hosts []host
	var peers []string
	for i, m := range newMachines(t, l, n) {
		peers = append(peers, m.Addr.String())
		hosts = append(hosts, host{machine: m, env: map[string]string{
			"PAIINIT_SECRET": secret, "PAIINIT_ROLE": "worker", "PAIINIT_INDEX": fmt.Sprint(i), "PAIINIT_SLOTS": "2",
		}})
	}
	for _, h := range hosts {
		h.env["PAIINIT_PEERS"] = strings.Join(peers, ",")
	}
	return hosts
}

// composeHosts returns the containers of a scaled docker compose service. All have the same environment and random host
// names; the resolver knows the addresses of the service, and a name for each address.
func composeHosts(t *testing.T, l *lab.Lab, n int) []host {
	t.Helper()
	var hosts []host
	for i, m := range newMachines(t, l, n) {
		l.Name("worker", m.Addr)
		l.Reverse(m.Addr, fmt.Sprintf("app-worker-%d.app_default.", (i+1)%n+1))
		hosts = append(hosts, host{
			machine:  m,
			hostname: fmt.Sprintf("%012x", 0xa1b2c3d4e5f6+i*0x1111),
			env: map[string]string{
				"PAIINIT_SECRET": secret, "PAIINIT_ROLE": "worker", "PAIINIT_SIZE": fmt.Sprint(n),
			},
			flags: []string{"--peers", "dns:worker", "--slots", "2"},
		})
	}
	return hosts
}

// task is a container of an OpenPAI job; its http port is one below its ssh port.
type task struct {
	role  string
	index int
	addr  netip.Addr
	port  int
}

// openPAIHosts returns one master and n-1 workers, spread evenly over the given number of machines. OpenPAI runs each
// container in the network of its machine, with the machine's host name and with ports of its own.
func openPAIHosts(
	t *testing.T, l *lab.Lab, n, machines int, environment func(tasks []task, self task) map[string]string,
) []host {
	t.Helper()
	var hosts []host
	var tasks []task
	on := newMachines(t, l, machines)
	for i := range n {
		m := on[i*machines/n]
		self := task{"worker", i - 1, m.Addr, 20001 + 10*i}
		if i == 0 {
			self.role, self.index = "master", 0
		}
		tasks = append(tasks, self)
		hosts = append(hosts, host{machine: m, name: fmt.Sprintf("%s-%d", self.role, self.index)})
	}
	for i := range hosts {
		hosts[i].env = environment(tasks, tasks[i])
		hosts[i].env["PAIINIT_SECRET"] = secret
	}
	return hosts
}

// openPAIClassic returns the environment of a task in OpenPAI 0.14 on YARN.
func openPAIClassic(tasks []task, self task) map[string]string {
	env := openPAICommon(tasks, self)
	for name, value := range map[string]string{
		"APP_ID":                              "application_1560000000000_0042",
		"PAI_CONTAINER_ID":                    fmt.Sprintf("container_e47_1560000000000_0042_01_%06d", self.port),
		"PAI_TASK_ROLE_NAME":                  self.role,
		"PAI_TASK_ROLE_INDEX":                 fmt.Sprint(self.index),
		"PAI_RESOURCE":                        "2,2,10240,256",
		"PAI_CURRENT_TASK_ROLE_TASK_COUNT":    env["PAI_TASK_ROLE_TASK_COUNT_"+self.role],
		"PAI_CURRENT_TASK_ROLE_CPU_COUNT":     "2",
		"PAI_CURRENT_TASK_ROLE_GPU_COUNT":     "2",
		"PAI_CURRENT_TASK_ROLE_MEM_MB":        "10240",
		"PAI_CURRENT_TASK_ROLE_SHM_MB":        "256",
		"PAI_CONTAINER_HOST_http_PORT_LIST":   fmt.Sprint(self.port - 1),
		"PAI_CONTAINER_HOST_ssh_PORT_LIST":    fmt.Sprint(self.port),
		"PAI_MIN_SUCCEEDED_TASK_COUNT_worker": "1",
	} {
		env[name] = value
	}
	return env
}

// openPAI08 returns the environment of a task in OpenPAI 0.8, which tells only the http ports of other tasks.
func openPAI08(tasks []task, self task) map[string]string {
	env := openPAIClassic(tasks, self)
	for name := range env {
		for _, prefix := range []string{"PAI_HOST_IP_", "PAI_PORT_LIST_", "PAI_master_", "PAI_worker_",
			"PAI_ps_server_", "PAI_TASK_ROLE_TASK_COUNT_", "PAI_TASK_ROLE_COUNT", "PAI_RESOURCE"} {
			if strings.HasPrefix(name, prefix) {
				delete(env, name)
			}
		}
	}
	return env
}

// openPAIv1 returns the environment of a task in OpenPAI 1.x on Kubernetes.
func openPAIv1(tasks []task, self task) map[string]string {
	env := openPAICommon(tasks, self)
	var instances []string
	for _, task := range tasks {
		instances = append(instances, fmt.Sprintf("%s:%d", task.role, task.index))
		env["PAI_RESOURCE_"+task.role] = "2,2,16384,0"
	}
	for name, value := range map[string]string{
		"PAI_FRAMEWORK_NAME":                env["PAI_JOB_NAME"],
		"PAI_VIRTUAL_CLUSTER":               "default",
		"PAI_TASK_ROLE_INSTANCES":           strings.Join(instances, ","),
		"PAI_CONTAINER_HOST_http_PORT_LIST": fmt.Sprint(self.port - 1),
		"PAI_CONTAINER_HOST_ssh_PORT_LIST":  fmt.Sprint(self.port),
		"FC_FRAMEWORK_NAMESPACE":            "default",
		"FC_FRAMEWORK_NAME":                 "f07b0d9f764fcdbfe0fb41491f2eb228",
		"FC_TASKROLE_NAME":                  self.role,
		"FC_TASK_INDEX":                     fmt.Sprint(self.index),
		"FC_FRAMEWORK_ATTEMPT_ID":           "0",
		"FC_FRAMEWORK_ATTEMPT_INSTANCE_UID": "0_a12d82af-5ea6-11ea-8a2a-90b11c27f535",
		"FC_POD_UID":                        fmt.Sprintf("0a000000-0000-4000-8000-%012d", self.port),
		"FC_TASK_ATTEMPT_ID":                "0",
	} {
		env[name] = value
	}
	return env
}

func openPAICommon(tasks []task, self task) map[string]string {
	env := map[string]string{
		"PAI_JOB_NAME":                             "alice~allreduce",
		"PAI_USER_NAME":                            "alice",
		"PAI_USERNAME":                             "alice",
		"PAI_TASK_ROLE_COUNT":                      "2",
		"PAI_TASK_ROLES_NUM":                       "2",
		"PAI_JOB_TASK_ROLE_COUNT":                  "2",
		"PAI_TASK_ROLE_LIST":                       "master,worker",
		"PAI_JOB_TASK_ROLE_LIST":                   "master,worker",
		"PAI_TASKS_NUM":                            fmt.Sprint(len(tasks)),
		"PAI_JOB_TASK_COUNT":                       fmt.Sprint(len(tasks)),
		"PAI_CURRENT_TASK_ROLE_NAME":               self.role,
		"PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX": fmt.Sprint(self.index),
		"PAI_TASK_INDEX":                           fmt.Sprint(self.index),
		"PAI_CURRENT_CONTAINER_IP":                 self.addr.String(),
		"PAI_CURRENT_CONTAINER_PORT":               fmt.Sprint(self.port - 1),
		"PAI_CONTAINER_HOST_IP":                    self.addr.String(),
		"PAI_CONTAINER_HOST_PORT":                  fmt.Sprint(self.port - 1),
		"PAI_CONTAINER_SSH_PORT":                   fmt.Sprint(self.port),
		"PAI_CONTAINER_HOST_PORT_LIST":             fmt.Sprintf("http:%d;ssh:%d;", self.port-1, self.port),
	}
	lists := map[string][]string{}
	for _, task := range tasks {
		lists[task.role] = append(lists[task.role], fmt.Sprintf("%s:%d", task.addr, task.port-1))
		id := fmt.Sprintf("%s_%d", task.role, task.index)
		env["PAI_HOST_IP_"+id] = task.addr.String()
		for label, port := range map[string]int{"http": task.port - 1, "ssh": task.port} {
			env["PAI_PORT_LIST_"+id+"_"+label] = fmt.Sprint(port)
			env["PAI_"+id+"_"+label+"_PORT"] = fmt.Sprint(port)
		}
	}
	for role, list := range lists {
		env["PAI_TASK_ROLE_"+role+"_HOST_LIST"] = strings.Join(list, ",")
		env["PAI_TASK_ROLE_TASK_COUNT_"+role] = fmt.Sprint(len(list))
	}
	return env
}
