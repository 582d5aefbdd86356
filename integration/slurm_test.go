package integration

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/integration/lab"
)

// slurmConf configures a cluster of three nodes without accounting and cgroups, with its state below /run.
const slurmConf = `ClusterName=lab
SlurmctldHost=ctl
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/linear
SchedulerType=sched/builtin
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SlurmdParameters=config_overrides
StateSaveLocation=/run/slurm/state
SlurmdSpoolDir=/run/slurm/spool
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd.pid
NodeName=n[0-2] CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
`

// daemon runs munge, with which Slurm's daemons authenticate, and one of these daemons in the foreground.
const daemon = `set -e
umask 022
mkdir -p /run/munge /run/slurm/state /run/slurm/spool
cp /run/lab/munge.key /run/munge/key && chmod 0400 /run/munge/key
munged --foreground --key-file=/run/munge/key --pid-file=/run/munge/pid --log-file=/run/munge/log \
	--seed-file=/run/munge/seed &
until [ -S /run/munge/munge.socket.2 ]; do sleep 0.05; done
exec "$@"
`

var missingSlurm = sync.OnceValue(func() []string {
	missing := lab.Missing(
		lab.Need{Try: []string{"/usr/sbin/slurmctld", "-V"}, Package: "slurmctld"},
		lab.Need{Try: []string{"/usr/sbin/slurmd", "-V"}, Package: "slurmd"},
		lab.Need{Try: []string{"test", "-x", "/usr/bin/srun"}, Package: "slurm-client"},
		lab.Need{Try: []string{"/usr/sbin/munged", "--version"}, Package: "munge"},
	)
	if text, err := os.ReadFile("/proc/self/uid_map"); err == nil {
		if ids := strings.Fields(string(text)); len(ids) == 3 && ids[2] == "1" {
			missing = append(missing, "root: Slurm's daemons do not run in a user namespace")
		}
	}
	return missing
})

// newSlurm starts a Slurm cluster and returns a container in which srun works.
func newSlurm(t *testing.T) *lab.Container {
	t.Helper()
	l := newLab(t)
	if missing := missingSlurm(); len(missing) > 0 {
		skip(t, strings.Join(missing, "; "))
	}
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		return path
	}
	conf, key := write("slurm.conf", slurmConf), write("munge.key", rand.Text()+rand.Text())
	jobSecret := write("secret", secret)
	machines := map[string]*lab.Machine{}
	for _, name := range []string{"ctl", "n0", "n1", "n2"} {
		m, err := l.Machine(name)
		require.NoError(t, err)
		l.Name(name, m.Addr)
		machines[name] = m
	}
	start := func(name string, args ...string) *lab.Container {
		c, err := machines[name].Start(lab.Program{
			Args:  append([]string{"sh", "-c", daemon, "sh"}, args...),
			Env:   []string{path, "SLURM_CONF=/run/lab/slurm.conf", "HOME=/tmp"},
			Dir:   root,
			Tmpfs: []string{"/var/log", "/var/lib"},
			Binds: map[string]string{
				"/run/lab/slurm.conf": conf, "/run/lab/munge.key": key, "/run/lab/secret": jobSecret,
				"/run/bin/paiinit": paiinit, root: root,
				"/sys/fs/cgroup": "/sys/fs/cgroup", // slurmd requires it, but does not change it
			},
			Hide: noShell,
		})
		require.NoError(t, err)
		return c
	}
	ctl := start("ctl", "slurmctld", "-D", "-i")
	for i := range 3 {
		start(fmt.Sprintf("n%d", i), "slurmd", "-D")
	}
	return ctl
}

// srun runs a step of three nodes, and returns its output and exit status.
func srun(t *testing.T, ctl *lab.Container, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	out, err := ctl.Exec(ctx, append([]string{"srun", "--nodes=3", "--chdir=" + root}, args...)...)
	var exit *exec.ExitError
	if err != nil {
		require.ErrorAs(t, err, &exit)
		return string(out), err.Error(), exit.ExitCode()
	}
	return string(out), "", 0
}

// TestSlurm runs jobs under a real Slurm, with one paiinit on each node and only the secret given.
func TestSlurm(t *testing.T) {
	ctl := newSlurm(t)
	once := []string{"--ntasks-per-node=1", "/run/bin/paiinit", "--secret-file", "/run/lab/secret"}
	job := func(args ...string) (stdout, stderr string, status int) {
		return srun(t, ctl, append(slices.Clone(once), args...)...)
	}

	sum := regexp.MustCompile(`allreduce over \d+ ranks on 3 hosts: sum = (\d+), expected (\d+) `)
	for _, launcher := range launchers {
		out, errs, status := job(append(append([]string{"--"}, launcher...), "python3", allreduce)...)
		require.Zero(t, status, errs)
		m := sum.FindStringSubmatch(out)
		require.NotNil(t, m, out)
		require.Equal(t, m[2], m[1])
	}

	// mpiexec.hydra needs an open standard input, see withInput.
	_, errs, status := job("--", "sh", "-c", "mkfifo /run/input && mpiexec.hydra sh -c 'exit 3' <>/run/input")
	require.Equal(t, 3, status, errs)

	out, errs, status := job("--exec", "all", "--", "python3", "-c", meet)
	require.Zero(t, status, errs)
	require.Equal(t, "met [1, 2]\n", out)

	out, errs, status = job("--exec", "all", "--",
		"sh", "-c", "echo $PAIINIT_RANK $SLURM_NODEID $PAIINIT_SIZE $(hostname)")
	require.Zero(t, status, errs)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	slices.Sort(lines)
	require.Equal(t, []string{"0 0 3 n0", "1 1 3 n1", "2 2 3 n2"}, lines)

	_, errs, status = srun(t, ctl, "--ntasks-per-node=2",
		"/run/bin/paiinit", "--secret-file", "/run/lab/secret", "--", "true")
	require.Equal(t, 78, status)
	require.Contains(t, errs, "started 2 times on this node; use --ntasks-per-node=1")

	// A batch script runs only on the first node.
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	_, err := ctl.Exec(ctx, "sbatch", "--wait", "--nodes=3", "--output=/tmp/%j",
		"--wrap", strings.Join(once[1:], " ")+" -- mpirun true 2>/dev/null; exit $?")
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 78, exit.ExitCode())
}
