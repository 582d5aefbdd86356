package docker

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// prototype is a job of kubeflow/openmpi: pods of the job's container and, in the workers, a sidecar that shares data/
// with it. The test is the sidecar. Paths, names, modes and the command are those of the templates
// (workloads.libsonnet, assets.libsonnet), and mca-params.conf has the lines of theirs.
type prototype struct {
	*job
	data []string // of each pod
}

const (
	prototypeWorkers = 2
	prototypeConf    = "hwloc_base_binding_policy=none\nrmaps_base_mapping_policy=slot\n" +
		"btl_tcp_if_exclude=lo,docker0\norte_keep_fqdn_hostnames=t\n"
)

// startPrototype starts the master and two workers of two slots each.
func startPrototype(t *testing.T, exec, initTimeout string) *prototype {
	t.Helper()
	p := &prototype{job: newJobOf(t, horovodSuites[false])}
	file, err := binary()
	require.NoError(t, err)
	examples, err := filepath.Abs(filepath.Join(root, "examples"))
	require.NoError(t, err)
	init, err := os.ReadFile(filepath.Join(examples, "kubeflow", "openmpi-init.sh"))
	require.NoError(t, err)
	names := []string{"mpi-master"}
	var hostfile strings.Builder
	for i := range prototypeWorkers {
		names = append(names, fmt.Sprintf("mpi-worker-%d", i))
		fmt.Fprintf(&hostfile, "mpi-worker-%d.mpi.kubeflow slots=2\n", i)
	}
	assets, secrets := t.TempDir(), t.TempDir()
	write := func(dir, name, text string, mode os.FileMode) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), mode))
	}
	write(assets, "init.sh", string(init), 0o555)
	write(assets, "mca-params.conf", prototypeConf, 0o644)
	write(assets, "hostfile", hostfile.String(), 0o644)
	write(secrets, "id_rsa", "-----BEGIN OPENSSH PRIVATE KEY-----\nb25lIHRpbWUga2V5\n", 0o400)
	write(secrets, "authorized_keys", "ssh-rsa AAAA\n", 0o400)
	for i, name := range names {
		data := t.TempDir()
		p.data = append(p.data, data)
		id, err := docker(t.Context(), "run", "--detach", "--network", p.name, "--hostname", name,
			"--network-alias", name+".mpi.kubeflow", "--name", fmt.Sprintf("%s-%d", p.name, i),
			"--label", "paiinit-test=yes",
			"--env", "KUBERNETES_SERVICE_HOST=10.96.0.1", "--workdir", "/kubeflow/openmpi/data",
			"--volume", assets+":/kubeflow/openmpi/assets:ro", "--volume", secrets+":/kubeflow/openmpi/secrets:ro",
			"--volume", data+":/kubeflow/openmpi/data", "--volume", file+":/usr/local/bin/paiinit:ro",
			"--volume", examples+":/examples:ro", "--entrypoint", "sh", p.image,
			"/kubeflow/openmpi/assets/init.sh", []string{"master", "worker"}[min(i, 1)], strconv.Itoa(prototypeWorkers),
			exec, initTimeout)
		require.NoError(t, err)
		p.containers = append(p.containers, strings.TrimSpace(id))
	}
	return p
}

// signal is what the sidecar of a worker does when the drivers are there, and when the master has ended.
func (p *prototype) signal(t *testing.T, worker int, name string) {
	t.Helper()
	dir := filepath.Join(p.data[worker+1], ".openmpi-controller")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o644))
}

// document is the command line of its users.
func document(program string) string {
	return "mpiexec -n 4 --hostfile /kubeflow/openmpi/assets/hostfile --allow-run-as-root --display-map --tag-output " +
		"--timestamp-output sh -c '" + program + "'"
}

func TestKubeflowPrototype(t *testing.T) {
	t.Run("sum", func(t *testing.T) {
		p := startPrototype(t, document("python3 /examples/allreduce.py"), "300")
		p.signal(t, 1, "SIGCONT")
		p.follow(t, 0, "waiting for", 1) // the first worker's sidecar is late
		p.signal(t, 0, "SIGCONT")
		require.Equal(t, same(0), p.wait(t, settle))
		out, _ := p.output(t, 0)
		require.Contains(t, out,
			"allreduce over 4 ranks on 2 hosts: sum = 10, expected 10 (mpi-worker-0, mpi-worker-1)")
		for _, data := range p.data[1:] {
			require.FileExists(t, filepath.Join(data, ".openmpi-controller", "SIGTERM"))
		}
	})
	t.Run("failing rank", func(t *testing.T) {
		p := startPrototype(t, document("python3 /examples/allreduce.py --fail 3"), "300")
		p.signal(t, 0, "SIGCONT")
		p.signal(t, 1, "SIGCONT")
		require.Equal(t, same(3), p.wait(t, settle))
	})
	for _, stop := range []string{"pod", "sidecar"} {
		t.Run("stopped by "+stop, func(t *testing.T) {
			p := startPrototype(t, document("python3 /examples/allreduce.py --sleep 1000"), "300")
			p.signal(t, 0, "SIGCONT")
			p.signal(t, 1, "SIGCONT")
			p.follow(t, 0, "sum = 10", 1)
			if stop == "pod" {
				_, err := docker(t.Context(), "stop", "--time", "30", p.containers[2])
				require.NoError(t, err)
			} else {
				p.signal(t, 1, "SIGTERM")
			}
			require.Equal(t, same(143), p.wait(t, settle))
		})
	}
	t.Run("no drivers", func(t *testing.T) {
		p := startPrototype(t, document("hostname"), "20") // time for the first worker to start
		p.signal(t, 0, "SIGCONT")
		require.Equal(t, []int{75, 75, 124}, p.wait(t, 2*settle))
		_, says := p.output(t, 0)
		require.Contains(t, says, "worker-1")
	})
}
