package docker

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
)

// prototype is a job of kubeflow/openmpi. Its pods have the job's container; those of workers also have a sidecar,
// which shares data/ with the container and whose part the test plays. Paths, names, modes and the command come from
// the templates (workloads.libsonnet, assets.libsonnet).
type prototype struct {
	*job
	data []string // data/ of each pod
}

// prototypeConf is the prototype's mca-params.conf.
const prototypeConf = "hwloc_base_binding_policy=none\nrmaps_base_mapping_policy=slot\n" +
	"btl_tcp_if_exclude=lo,docker0\n" +
	"orte_keep_fqdn_hostnames=t\nmca_base_env_list=LD_LIBRARY_PATH\n"

// ksonnet is the result of the commands of examples/kubeflow/openmpi.sh.
type ksonnet struct {
	name, exec, initTimeout string
	workers, gpu            int
	init                    string            // the package's init.sh, which goes into the ConfigMap
	secret                  map[string]string // contents of the Secret's files, by name
	ready                   int               // number of workers whose sidecars have sent SIGCONT before they start
}

// ksonnetExample runs the example with stand-ins for ks, kubectl and ssh-keygen, which log their arguments. ks uses the
// directories of ksonnet 0.12 and later (vendor/REGISTRY/PACKAGE@VERSION, pkg/pkg/local.go of ksonnet).
func ksonnetExample(t *testing.T) ksonnet {
	t.Helper()
	dir, bin := t.TempDir(), t.TempDir()
	for name, does := range map[string]string{
		"kubectl":    "",
		"ssh-keygen": `echo "-----BEGIN OPENSSH PRIVATE KEY----- of this job" >"$4"; echo ssh-rsa AAAA >"$4.pub"`,
		"ks": `case "$1 $2" in
			"init "*) mkdir "$2" ;;
			"pkg install") mkdir -p "vendor/$3/assets"; echo replaced >"vendor/$3/assets/init.sh" ;;
			"apply default") cat vendor/kubeflow/openmpi*/assets/init.sh >"$LOG.init" ;;
		esac`,
	} {
		text := "#!/bin/sh\n{ printf '%s\\037' " + name + " \"$@\"; echo; } >>\"$LOG\"\n" + does + "\n"
		require.NoError(t, os.WriteFile(filepath.Join(bin, name), []byte(text), 0o755)) //nolint:gosec // a program
	}
	script, err := filepath.Abs(filepath.Join(root, "examples", "kubeflow", "openmpi.sh"))
	require.NoError(t, err)
	log := filepath.Join(dir, "log")
	cmd := exec.CommandContext(t.Context(), script)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "LOG="+log)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	logged, err := os.ReadFile(log)
	require.NoError(t, err)
	init, err := os.ReadFile(log + ".init")
	require.NoError(t, err)
	k := ksonnet{init: string(init), secret: make(map[string]string)}
	for line := range strings.Lines(string(logged)) {
		words := strings.Split(strings.TrimSuffix(line, "\037\n"), "\037")
		switch strings.Join(words[:min(len(words), 3)], " ") {
		case "kubectl create secret":
			for _, word := range words {
				if file, ok := strings.CutPrefix(word, "--from-file="); ok {
					name, path, _ := strings.Cut(file, "=")
					text, err := os.ReadFile(filepath.Join(dir, path))
					require.NoError(t, err)
					k.secret[name] = string(text)
				}
			}
		case "ks generate openmpi":
			k.name = words[3]
			option := func(name string) string { return words[slices.Index(words, name)+1] }
			k.exec, k.initTimeout = option("--exec"), option("--initTimeout")
			k.workers, err = strconv.Atoi(option("--workers"))
			require.NoError(t, err)
			k.gpu, err = strconv.Atoi(option("--gpu"))
			require.NoError(t, err)
		}
	}
	return k
}

// startPrototype starts the master and the workers of the example, with the given program instead of its own.
func startPrototype(t *testing.T, program string, change func(k *ksonnet)) *prototype {
	t.Helper()
	p := &prototype{job: newJobOf(t, horovodImage)}
	file, err := binary()
	require.NoError(t, err)
	train, err := filepath.Abs(filepath.Join(root, "examples", "allreduce.py"))
	require.NoError(t, err)
	k := ksonnetExample(t)
	require.Contains(t, k.exec, "'python /examples/train.py'")
	k.exec = strings.Replace(k.exec, "python /examples/train.py", program, 1)
	if change != nil {
		change(&k)
	}
	names := []string{k.name + "-master"}
	var hostfile strings.Builder
	for i := range k.workers {
		names = append(names, fmt.Sprintf("%s-worker-%d", k.name, i))
		fmt.Fprintf(&hostfile, "%s-worker-%d.%s.kubeflow slots=%d\n", k.name, i, k.name, max(k.gpu, 1))
	}
	assets, secrets := t.TempDir(), t.TempDir()
	write := func(dir, name, text string, mode os.FileMode) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), mode))
	}
	write(assets, "init.sh", k.init, 0o555)
	write(assets, "mca-params.conf", prototypeConf, 0o644)
	write(assets, "sshd_config", "Port 2022\n", 0o644)
	write(assets, "ssh_config", "Port 2022\n", 0o644)
	write(assets, "hostfile", hostfile.String(), 0o644)
	for name, text := range k.secret {
		write(secrets, name, text, 0o400)
	}
	for i, name := range names {
		data := t.TempDir()
		require.NoError(t, os.Chmod(data, 0o777)) //nolint:gosec // as an emptyDir is
		p.data = append(p.data, data)
		if i > 0 && i <= k.ready {
			p.signal(t, i-1, "SIGCONT")
		}
		id, err := docker(t.Context(), "run", "--detach", "--network", p.name, "--hostname", name,
			"--network-alias", name+"."+k.name+".kubeflow", "--name", fmt.Sprintf("%s-%d", p.name, i),
			"--label", "paiinit-test=yes", "--env", "KUBERNETES_SERVICE_HOST=10.96.0.1",
			"--env", "LD_LIBRARY_PATH=/usr/local/nvidia/lib64", "--workdir", "/kubeflow/openmpi/data",
			"--volume", assets+":/kubeflow/openmpi/assets:ro", "--volume", secrets+":/kubeflow/openmpi/secrets:ro",
			"--volume", data+":/kubeflow/openmpi/data", "--volume", file+":/usr/bin/paiinit:ro",
			"--volume", pythonProgram(t)+":/usr/bin/python:ro", "--volume", train+":/examples/train.py:ro",
			"--entrypoint", "sh", p.image,
			"/kubeflow/openmpi/assets/init.sh", []string{"master", "worker"}[min(i, 1)], strconv.Itoa(k.workers),
			k.exec, k.initTimeout)
		require.NoError(t, err)
		p.containers = append(p.containers, strings.TrimSpace(id))
	}
	return p
}

// signal does what the sidecar of a worker does when the drivers are ready, and when the master has ended.
func (p *prototype) signal(t *testing.T, worker int, name string) {
	t.Helper()
	dir := filepath.Join(p.data[worker+1], ".openmpi-controller")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o644))
}

// signalAll signals all workers.
func (p *prototype) signalAll(t *testing.T, name string) {
	t.Helper()
	for i := range p.data[1:] {
		p.signal(t, i, name)
	}
}

func TestKubeflowPrototype(t *testing.T) {
	t.Parallel()
	const (
		train = "python /examples/train.py"
		done  = "allreduce over 4 ranks on 4 hosts: sum = 10, expected 10 (openmpi-worker-0, openmpi-worker-1, " +
			"openmpi-worker-2, openmpi-worker-3)"
	)
	all := func(status int) []int { return slices.Repeat([]int{status}, 5) }
	t.Run("well", func(t *testing.T) {
		p := startPrototype(t, train, nil)
		for _, worker := range []int{3, 1, 2} {
			p.signal(t, worker, "SIGCONT")
		}
		p.follow(t, 0, "waiting for", 1) // the first worker's sidecar is late
		p.signal(t, 0, "SIGCONT")
		require.Equal(t, all(0), p.wait(t, documentTime))
		out, _ := p.output(t, 0)
		require.Contains(t, out, done)
	})
	// Each worker gets one rank with GPU=0, as with GPU=1.
	t.Run("hello", func(t *testing.T) {
		p := startPrototype(t, "echo hello world", func(k *ksonnet) { k.gpu = 0 })
		p.signalAll(t, "SIGCONT")
		require.Equal(t, all(0), p.wait(t, documentTime))
		out, _ := p.output(t, 0)
		require.Equal(t, 4, strings.Count(out, "<stdout>:hello world\n"), "%s", out)
	})
	// Each worker expands the variable, because it is in single quotes for the shell of the master.
	t.Run("stubs", func(t *testing.T) {
		const stubs = "/usr/local/cuda-9.0/targets/x86_64-linux/lib/stubs"
		p := startPrototype(t, "LD_LIBRARY_PATH=$LD_LIBRARY_PATH:"+stubs+
			` python -c "import os; print(os.environ[\"LD_LIBRARY_PATH\"])"`, nil)
		p.signalAll(t, "SIGCONT")
		require.Equal(t, all(0), p.wait(t, documentTime))
		out, _ := p.output(t, 0)
		require.Equal(t, 4, strings.Count(out, "<stdout>:/usr/local/nvidia/lib64:"+stubs+"\n"), "%s", out)
	})
	// Without --exec the templates use "sleep infinity", for a job in which people type their commands.
	t.Run("no exec", func(t *testing.T) {
		p := startPrototype(t, "", func(k *ksonnet) { k.exec = "sleep infinity" })
		p.signalAll(t, "SIGCONT")
		p.follow(t, 0, "launching", 1)
		out, err := docker(t.Context(), "exec", p.containers[0], "sh", "-ec", "mpiexec -n 4 --hostfile "+
			`/kubeflow/openmpi/assets/hostfile --allow-run-as-root -mca plm_rsh_agent "paiinit rsh" `+train)
		require.NoError(t, err)
		require.Contains(t, out, done)
		_, err = docker(t.Context(), "stop", "--time", "30", p.containers[0])
		require.NoError(t, err)
		require.Equal(t, all(143), p.wait(t, documentTime))
	})
	t.Run("failing rank", func(t *testing.T) {
		p := startPrototype(t, train+" --fail 3", nil)
		p.signalAll(t, "SIGCONT")
		require.Equal(t, all(3), p.wait(t, documentTime))
	})
	for _, stop := range []string{"pod", "sidecar"} {
		t.Run("stopped by "+stop, func(t *testing.T) {
			p := startPrototype(t, train+" --sleep 1000", nil)
			p.signalAll(t, "SIGCONT")
			p.follow(t, 0, "sum = 10", 1)
			if stop == "pod" {
				_, err := docker(t.Context(), "stop", "--time", "30", p.containers[4])
				require.NoError(t, err)
			} else {
				p.signal(t, 3, "SIGTERM")
			}
			require.Equal(t, all(143), p.wait(t, documentTime))
		})
	}
	t.Run("no drivers", func(t *testing.T) {
		// On a busy machine, the start of five containers takes up to 40 s.
		p := startPrototype(t, "hostname", func(k *ksonnet) { k.initTimeout, k.ready = "60", 3 })
		require.Equal(t, []int{75, 75, 75, 75, 124}, p.wait(t, documentTime))
		_, says := p.output(t, 0)
		require.Contains(t, says, "worker-3")
	})
}
