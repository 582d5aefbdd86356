package docker

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// paiJob is a job file of OpenPAI on YARN.
type paiJob struct {
	JobName                     string
	DataDir, OutputDir, CodeDir string
	TaskRoles                   []paiRole
	JobEnvs                     map[string]any
}

type paiRole struct {
	Name                            string
	TaskNumber, CPUNumber, MemoryMB int
	ShmMB, GPUNumber                int
	MinFailedTaskCount              *int
	MinSucceededTaskCount           *int
	Command                         string
	PortList                        []struct{ Label string }
}

// paiTask is a container of the job. Its ssh port is http+1.
type paiTask struct {
	paiRole
	index, machine, http int
}

// paiSite is a job from a file of examples/openpai, on machines like those of OpenPAI 0.14.
type paiSite struct {
	*site
	paiJob
	tasks   []paiTask
	options []string // options of docker run, for all tasks
	keys    string   // directory with the job's key, if the image has openssh-server
	code    string   // directory that stands in for codeDir on HDFS; "" = an empty one
}

const (
	paiUser = "alice"
	hdfs    = "hdfs://10.151.40.179:9000"
)

// newPAISite reads the job and spreads its tasks evenly over two machines.
func newPAISite(t *testing.T, image func() (string, error), file string) *paiSite {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "examples/openpai", file))
	require.NoError(t, err)
	text = submitted(t, text)
	p := &paiSite{}
	require.NoError(t, json.Unmarshal(text, &p.paiJob))
	p.site = newSite(t, image, "machine-a", "machine-b")
	p.stop = stopOpenPAI
	for _, r := range p.TaskRoles {
		for i := range r.TaskNumber {
			n := len(p.tasks)
			p.tasks = append(p.tasks, paiTask{paiRole: r, index: i, machine: n % len(p.names), http: 15453 + 10*n})
		}
	}
	return p
}

// name returns the job's name after its user's, as OpenPAI 0.9 and later do.
func (p *paiSite) name() string { return paiUser + "~" + p.JobName }

// environment returns env.list of yarnContainerScript.mustache (0.14.0), line by line.
func (p *paiSite) environment(self paiTask) string {
	var list strings.Builder
	add := func(name string, value any) { fmt.Fprintf(&list, "%s=%v\n", name, value) }
	count := func(n *int) string {
		if n == nil {
			return ""
		}
		return fmt.Sprint(*n)
	}
	uri := func(dir string) string { return strings.ReplaceAll(dir, "$PAI_DEFAULT_FS_URI", hdfs) }
	ip := p.addresses[self.machine]
	add("APP_ID", "application_1560000000000_0042")
	add("FRAMEWORK_NAME", p.name())
	add("HADOOP_USER_NAME", paiUser)
	add("PAI_TASK_INDEX", self.index)
	add("PAI_CONTAINER_HOST_IP", ip)
	add("PAI_CONTAINER_HOST_PORT_LIST", fmt.Sprintf("http:%d;ssh:%d;", self.http, self.http+1))
	add("PAI_CONTAINER_ID", fmt.Sprintf("container_e47_1560000000000_0042_01_%06d", self.http))
	add("PAI_JOB_NAME", p.name())
	add("PAI_USER_NAME", paiUser)
	add("PAI_DEFAULT_FS_URI", hdfs)
	var roles []string
	for _, r := range p.TaskRoles {
		roles = append(roles, r.Name)
	}
	add("PAI_TASK_ROLE_COUNT", len(roles))
	add("PAI_TASK_ROLE_LIST", strings.Join(roles, ","))
	add("PAI_RESOURCE", fmt.Sprintf("%d,%d,%d,%d", self.GPUNumber, self.CPUNumber, self.MemoryMB, self.ShmMB))
	add("PAI_MIN_FAILED_TASK_COUNT_"+self.Name, count(self.MinFailedTaskCount))
	add("PAI_MIN_SUCCEEDED_TASK_COUNT_"+self.Name, count(self.MinSucceededTaskCount))
	add("PAI_CURRENT_TASK_ROLE_NAME", self.Name)
	add("PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX", self.index)
	add("PAI_CONTAINER_HOST_http_PORT_LIST", self.http)
	add("PAI_CONTAINER_HOST_ssh_PORT_LIST", self.http+1)
	add("PAI_CONTAINER_HOST_PORT", self.http)
	add("PAI_CONTAINER_SSH_PORT", self.http+1)
	slices.Sort(roles) // like keys of jq
	for _, role := range roles {
		var hosts []string
		for _, task := range p.tasks {
			if task.Name != role {
				continue
			}
			id, ip := fmt.Sprintf("%s_%d", role, task.index), p.addresses[task.machine]
			hosts = append(hosts, fmt.Sprintf("%s:%d", ip, task.http))
			add("PAI_HOST_IP_"+id, ip)
			for i, label := range []string{"http", "ssh"} {
				add("PAI_PORT_LIST_"+id+"_"+label, task.http+i)
				add("PAI_"+id+"_"+label+"_PORT", task.http+i)
			}
		}
		add("PAI_TASK_ROLE_TASK_COUNT_"+role, len(hosts))
		add("PAI_TASK_ROLE_"+role+"_HOST_LIST", strings.Join(hosts, ","))
	}
	add("PAI_CURRENT_CONTAINER_IP", ip)
	add("PAI_TASK_ROLE_INDEX", self.index)
	add("PAI_USERNAME", paiUser)
	add("PAI_DATA_DIR", uri(p.DataDir))
	add("PAI_OUTPUT_DIR", uri(p.OutputDir))
	add("PAI_CODE_DIR", uri(p.CodeDir))
	add("PAI_TASK_ROLE_NAME", self.Name)
	add("PAI_TASK_ROLE_NUM", self.TaskNumber)
	for name, value := range map[string]any{
		"TASK_COUNT": self.TaskNumber, "CPU_COUNT": self.CPUNumber,
		"MEM_MB": self.MemoryMB, "GPU_COUNT": self.GPUNumber,
		"SHM_MB": self.ShmMB, "MIN_FAILED_TASK_COUNT": count(self.MinFailedTaskCount),
		"MIN_SUCCEEDED_TASK_COUNT": count(self.MinSucceededTaskCount),
	} {
		add("PAI_CURRENT_TASK_ROLE_"+name, value)
	}
	for _, name := range []string{"PAI_TASKS_NUM", "PAI_JOB_TASK_COUNT"} {
		add(name, len(p.tasks))
	}
	for _, name := range []string{"PAI_TASK_ROLES_NUM", "PAI_JOB_TASK_ROLE_COUNT"} {
		add(name, len(p.TaskRoles))
	}
	roles = roles[:0]
	for _, r := range p.TaskRoles {
		roles = append(roles, r.Name)
	}
	add("PAI_TASK_ROLE_LIST", strings.Join(roles, ","))
	add("PAI_JOB_TASK_ROLE_LIST", strings.Join(roles, ","))
	add("PAI_CURRENT_CONTAINER_PORT", self.http)
	for name, value := range p.JobEnvs {
		add(name, value)
	}
	return list.String()
}

// sshConfig returns the ~/.ssh/config that OpenPAI writes if the image has openssh-server.
func (p *paiSite) sshConfig() string {
	var text strings.Builder
	for _, task := range p.tasks {
		fmt.Fprintf(&text, "Host %s-%d\n  HostName %s\n  Port %d\n  User root\n  StrictHostKeyChecking no\n"+
			"  UserKnownHostsFile /dev/null\n  IdentityFile /root/.ssh/%s\n",
			task.Name, task.index, p.addresses[task.machine], task.http+1, p.name())
	}
	return text.String()
}

// start starts a task like yarnContainerScript.mustache, but without GPUs and Hadoop's configuration. It appends args
// to the command, and options to those of docker run.
func (p *paiSite) start(t *testing.T, task paiTask, args string, options ...string) {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644)) //nolint:gosec // for the container's user
		return file
	}
	environment := write("env.list", p.environment(task))
	config := filepath.Dir(write("ssh_config/config", p.sshConfig()))
	code := p.code
	if code == "" {
		code = filepath.Join(dir, "code")
		require.NoError(t, os.Mkdir(code, 0o755))
	}
	bootstrap, err := filepath.Abs("testdata/openpai-bootstrap.sh")
	require.NoError(t, err)
	shm := max(task.ShmMB, 64)
	all := []string{"--init", "--privileged=false", "--oom-score-adj", "1000",
		"--cap-add", "SYS_ADMIN", "--cap-add", "DAC_READ_SEARCH", "--cap-drop", "MKNOD",
		"--cpus", fmt.Sprint(min(2, task.CPUNumber)), "--memory", fmt.Sprintf("%dm", task.MemoryMB),
		"--shm-size", fmt.Sprintf("%dm", shm), "--security-opt", "apparmor:unconfined",
		"--volume", bootstrap + ":/pai/bootstrap/docker_bootstrap.sh:ro", "--volume", code + ":/pai/code:ro",
		"--volume", config + ":/pai/ssh_config:ro",
		"--env", "NVIDIA_VISIBLE_DEVICES=void", "--env-file", environment, "--entrypoint", ""}
	if p.keys != "" {
		all = append(all, "--volume", p.keys+":/keys:ro")
	}
	if p.JobEnvs["paiAzRDMA"] == true {
		var machines strings.Builder
		for i, name := range p.names {
			fmt.Fprintf(&machines, "%s %s\n", p.addresses[i], name)
		}
		pool := filepath.Dir(write("hyperv/.kvp_pool_0", ""))
		all = append(all, "--volume", pool+":/var/lib/hyperv", "--volume", write("dat.conf", datConf)+":/etc/dat.conf",
			"--ulimit", "memlock="+unlimited(t), "--volume", write("machines", machines.String())+":/machines:ro")
	}
	all = slices.Concat(all, p.options, options)
	p.run(t, task.machine, append(all, "IMAGE", "/bin/bash",
		"/pai/bootstrap/docker_bootstrap.sh", task.Command+args)...)
}

// unlimited returns the highest limit of locked memory that this machine allows, -1 if there is no limit.
func unlimited(t *testing.T) string {
	t.Helper()
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit))
	if limit.Max == unix.RLIM_INFINITY {
		return "-1"
	}
	return fmt.Sprint(limit.Max)
}

// datConf configures the DAPL library, with the provider that WALinuxAgent adds on machines with Network Direct.
const datConf = `ofa-v2-ib0 u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 "ib0 0" ""` + "\n"

// starts returns a function per task that starts it.
func (p *paiSite) starts(t *testing.T, args string, options ...string) []func() {
	var start []func()
	for _, task := range p.tasks {
		start = append(start, func() { p.start(t, task, args, options...) })
	}
	return start
}

// stopOpenPAI stops a container like the exit handler of yarnContainerScript.mustache: it sends SIGTERM to every
// process of its session, including the shell of the bootstrap script.
func stopOpenPAI(t *testing.T, id string) {
	t.Helper()
	pid, err := docker(t.Context(), "inspect", "--format", "{{.State.Pid}}", id)
	require.NoError(t, err)
	_, err = run(t.Context(), nil, "sh", "-c", "kill -15 $(ps -s "+strings.TrimSpace(pid)+" -o pid=) || true")
	require.NoError(t, err)
}

// intelMPI mounts the stand-in for Intel MPI into the containers, and examples/allreduce.py as the program.
func (p *paiSite) intelMPI(t *testing.T) {
	t.Helper()
	standIn, err := filepath.Abs("testdata/intelmpi")
	require.NoError(t, err)
	program, err := filepath.Abs(filepath.Join(root, "examples/allreduce.py"))
	require.NoError(t, err)
	p.options = append(p.options, "--volume", standIn+":/opt/intel/impi:ro", "--volume", program+":/train.py:ro",
		"--env", "PATH=/opt/intel/impi:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
}

// jobKey generates a key pair, as OpenPAI does for each job.
func (p *paiSite) jobKey(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	_, err := run(t.Context(), nil, "ssh-keygen", "-q", "-t", "rsa", "-N", "", "-f", filepath.Join(dir, p.name()))
	require.NoError(t, err)
	return dir
}

// networkDirect stands in for the devices of a machine with Azure's Network Direct. paiinit checks only that they
// exist.
var networkDirect = []string{"--device", "/dev/null:/dev/hvnd_rdma"}

// TestOpenPAIHorovod: Horovod with Intel MPI and Azure's RDMA on OpenPAI 0.14. The image has openssh-server, as such
// images do, and OpenPAI starts it on the ssh port of each task. A stand-in replaces Intel MPI, see
// testdata/intelmpi/mpiexec.hydra.
func TestOpenPAIHorovod(t *testing.T) {
	t.Parallel()
	lay := func(t *testing.T, options ...string) *paiSite {
		p := newPAISite(t, suites["trixie"], "horovod-rdma.json")
		p.keys = p.jobKey(t)
		p.intelMPI(t)
		p.options = append(p.options, options...)
		return p
	}
	const done = "sum = 10, expected 10 (machine-a, machine-b)"
	documented(t, done, mpichFailure, func(t *testing.T, args string) (*job, []func()) {
		// The stand-in is MPICH, which does not end the job after a rank exits (docs/launchers.md).
		args = strings.Replace(args, "--fail", "--kill", 1)
		p := lay(t, networkDirect...)
		return p.job, p.starts(t, args)
	})
	// Intel MPI does not always notice that one of its proxies has failed; MPICH never does.
	t.Run("failing proxy", func(t *testing.T) {
		p := lay(t, networkDirect...)
		for _, start := range p.starts(t, " --sleep 1000") {
			start()
		}
		p.follow(t, 0, done, 1)
		_, err := docker(t.Context(), "exec", p.containers[3], "python3", "-c", `import glob, os
for f in glob.glob("/proc/[0-9]*/comm"):
    if "pmi_proxy" in open(f).read():
        os.kill(int(f.split("/")[2]), 9)`)
		require.NoError(t, err)
		require.Equal(t, []int{75, 75, 75, 75}, p.wait(t, documentTime))
		_, says := p.output(t, 0)
		require.Contains(t, says, "the launcher's proxy on worker-2 ended with status 137")
	})
	t.Run("no Network Direct on one machine", func(t *testing.T) {
		p := lay(t, "--env", "PAIINIT_RDMA=require")
		for i, task := range p.tasks {
			var options []string
			if i < 3 {
				options = networkDirect
			}
			p.start(t, task, "", options...)
		}
		require.Equal(t, []int{69, 69, 69, 69}, p.wait(t, documentTime))
		_, says := p.output(t, 0)
		require.Contains(t, says, "worker-2")
	})
}

// TestOpenPAITensorFlow: TensorFlow with parameter servers on OpenPAI 0.14. The image has no openssh-server, like
// TensorFlow's images. integration/testdata/train.py stands in for the program, and a script for pip.
func TestOpenPAITensorFlow(t *testing.T) {
	t.Parallel()
	lay := func(t *testing.T) *paiSite {
		p := newPAISite(t, horovodSuites[false], "tensorflow.json")
		// Start rank 0, which is a worker, first and a parameter server last.
		slices.SortStableFunc(p.tasks, func(a, b paiTask) int { return strings.Compare(b.Name, a.Name) })
		p.code = t.TempDir()
		code := filepath.Join(p.code, "code")
		require.NoError(t, os.Mkdir(code, 0o755))
		text, err := os.ReadFile(filepath.Join(root, "integration/testdata/train.py"))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(code, "tf_cnn_benchmarks.py"), text, 0o644))
		pip := filepath.Join(t.TempDir(), "pip")
		require.NoError(t, os.WriteFile(pip, []byte("#!/bin/sh\nexit $PIP\n"), 0o755))
		p.options = append(p.options, "--volume", pip+":/usr/bin/pip:ro")
		return p
	}
	const done = "worker 0 of 2 with 2 parameter servers"
	documented(t, done, tensorFlowFailure, func(t *testing.T, args string) (*job, []func()) {
		p := lay(t)
		return p.job, p.starts(t, args)
	})
	t.Run("failing pip", func(t *testing.T) {
		p := lay(t)
		p.JobEnvs["PAIINIT_TIMEOUT"] = "30s"
		for i, task := range p.tasks {
			p.start(t, task, "", "--env", fmt.Sprintf("PIP=%d", i/3))
		}
		require.Equal(t, []int{75, 75, 75, 1}, p.wait(t, documentTime))
		_, says := p.output(t, 0)
		require.Contains(t, says, "ps_server-1")
	})
	for name, sshd := range map[string]bool{"logged in": false, "logged in beside sshd": true} {
		t.Run(name, func(t *testing.T) {
			p := lay(t)
			keys := p.jobKey(t)
			key := filepath.Join(keys, p.name())
			above := 1 // http
			if sshd {
				p.keys, above = keys, 2
				p.JobEnvs["PAIINIT_AUTHORIZED_KEYS"] = "/root/.ssh/" + p.name() + ".pub"
			} else {
				public, err := os.ReadFile(key + ".pub")
				require.NoError(t, err)
				file := filepath.Join(p.code, "code/authorized_keys")
				require.NoError(t, os.WriteFile(file, public, 0o644)) //nolint:gosec // a public key
				p.JobEnvs["PAIINIT_AUTHORIZED_KEYS"] = "code/authorized_keys"
			}
			for _, start := range p.starts(t, " --sleep 1000") {
				start()
			}
			p.follow(t, 0, "worker 0 of 2", 1)
			ssh := func(key string, task paiTask, command string) (string, error) {
				return run(t.Context(), os.Environ(), "ssh", "-F", "none", "-i", key, "-p", fmt.Sprint(task.http+above),
					"-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no",
					"-o", "UserKnownHostsFile=/dev/null", "root@"+p.addresses[task.machine], command)
			}
			const who = "echo $PAIINIT_ROLE-$PAIINIT_INDEX $PAI_CURRENT_TASK_ROLE_NAME"
			for _, task := range p.tasks {
				out, err := ssh(key, task, who)
				require.NoError(t, err)
				require.Equal(t, fmt.Sprintf("%s-%d %[1]s\n", task.Name, task.index), out)
			}
			// From the first task to the others, as in the guide.
			out, err := ssh(key, p.tasks[0], "ssh ps_server-1 '"+who+"'; ssh worker-1 '"+who+"'")
			require.NoError(t, err)
			require.Equal(t, "ps_server-1 ps_server\nworker-1 worker\n", out)
			other := filepath.Join(t.TempDir(), "key")
			_, err = run(t.Context(), nil, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other)
			require.NoError(t, err)
			_, err = ssh(other, p.tasks[0], "true")
			require.ErrorContains(t, err, "Permission denied")
		})
	}
}
