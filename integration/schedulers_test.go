package integration

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/integration/lab"
)

// Environments of one job of n containers under schedulers that tell each container the ranks and addresses. The tests
// add only the secret, and the size if the scheduler does not tell it. Containers without GPUs have two CPUs.

// podsOf returns hosts with these names. The name server knows them by the names that resolve returns.
func podsOf(
	t *testing.T, l *lab.Lab, names []string, resolve func(name string) string,
	environment func(i int) map[string]string,
) []host {
	t.Helper()
	var hosts []host
	for i, m := range newMachines(t, l, len(names)) {
		if resolve != nil {
			l.Name(resolve(names[i]), m.Addr)
		}
		env := environment(i)
		env["HOSTNAME"], env["PAIINIT_SECRET"] = names[i], secret
		hosts = append(hosts, host{machine: m, name: names[i], hostname: names[i], env: env, binds: twoCPUs(t)})
	}
	return hosts
}

// twoCPUs returns the bind mount of a cgroup with a quota of two CPUs.
func twoCPUs(t *testing.T) map[string]string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "cpu.max"), []byte("200000 100000\n"), 0o600))
	return map[string]string{"/sys/fs/cgroup": dir}
}

func numbered(format string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf(format, i)
	}
	return names
}

// azureHosts returns the nodes of an Azure Batch task, whose second node is the master, or of an Azure ML job with
// PyTorch.
func azureHosts(t *testing.T, l *lab.Lab, n int, pytorch bool) []host {
	t.Helper()
	hosts := podsOf(t, l, numbered("tvm-%d", n), nil, func(int) map[string]string { return map[string]string{} })
	var list []string
	for _, h := range hosts {
		list = append(list, h.machine.Addr.String())
	}
	ccp := fmt.Sprint(n)
	for _, addr := range list {
		ccp += " " + addr + " 24"
	}
	for i, h := range hosts {
		master := 1
		h.env["AZ_BATCH_JOB_ID"] = "mt-batchjob001"
		if pytorch {
			master = 0
			h.env["AZUREML_RUN_ID"] = "distr-pytorch-mnist_1617000000_abcd1234"
			h.env["AZUREML_NODE_COUNT"] = fmt.Sprint(n)
			h.env["MASTER_ADDR"], h.env["MASTER_PORT"], h.env["NODE_RANK"] = list[0], "6105", fmt.Sprint(i)
			h.env["RANK"], h.env["LOCAL_RANK"], h.env["WORLD_SIZE"] = fmt.Sprint(i), "0", fmt.Sprint(n)
			h.env["AZ_BATCHAI_NUM_GPUS"] = "2"
		}
		h.env["AZ_BATCH_HOST_LIST"], h.env["AZ_BATCH_NODE_LIST"] = strings.Join(list, ","), strings.Join(list, ";")
		h.env["AZ_BATCH_MASTER_NODE"], h.env["AZ_BATCHAI_MPI_MASTER_NODE"] = list[master]+":6000", list[master]
		h.env["AZ_BATCH_IS_CURRENT_NODE_MASTER"], h.env["CCP_NODES"] = fmt.Sprint(i == master), ccp
	}
	return hosts
}

// indexedJobHosts returns the pods of an Indexed Job with a headless Service.
func indexedJobHosts(t *testing.T, l *lab.Lab, n int) []host {
	t.Helper()
	resolve := func(name string) string { return name + ".headless-svc" }
	hosts := podsOf(t, l, numbered("pi-%d", n), resolve, func(i int) map[string]string {
		return map[string]string{
			"JOB_COMPLETION_INDEX": fmt.Sprint(i), "KUBERNETES_SERVICE_HOST": "10.96.0.1",
			"PAIINIT_SIZE": fmt.Sprint(n),
		}
	})
	for i := range hosts {
		name := hosts[i].name + ".headless-svc.default.svc.cluster.local"
		hosts[i].hosts = map[string]netip.Addr{name: hosts[i].machine.Addr}
	}
	return hosts
}

// pyTorchJobHosts returns the master and the workers of Kubeflow's PyTorchJob.
func pyTorchJobHosts(t *testing.T, l *lab.Lab, n int) []host {
	t.Helper()
	names := append([]string{"mnist-master-0"}, numbered("mnist-worker-%d", n-1)...)
	return podsOf(t, l, names, func(name string) string { return name }, func(i int) map[string]string {
		return map[string]string{
			"PYTHONUNBUFFERED": "1", "MASTER_ADDR": names[0], "MASTER_PORT": "23456",
			"PET_MASTER_ADDR": names[0], "PET_MASTER_PORT": "23456",
			"WORLD_SIZE": fmt.Sprint(n), "PET_NNODES": fmt.Sprint(n),
			"RANK": fmt.Sprint(i), "PET_NODE_RANK": fmt.Sprint(i), "PET_NPROC_PER_NODE": "auto",
		}
	})
}

// volcanoHosts returns the pods of a Volcano job with the svc plugin.
func volcanoHosts(t *testing.T, l *lab.Lab, n int) []host {
	t.Helper()
	names := append([]string{"lm-mpi-job-mpimaster-0"}, numbered("lm-mpi-job-mpiworker-%d", n-1)...)
	full := func(name string) string { return name + ".lm-mpi-job" }
	var workers []string
	for _, name := range names[1:] {
		workers = append(workers, full(name))
	}
	return podsOf(t, l, names, full, func(i int) map[string]string {
		index := fmt.Sprint(max(i-1, 0))
		return map[string]string{
			"VK_TASK_INDEX": index, "VC_TASK_INDEX": index,
			"VC_MPIMASTER_HOSTS": full(names[0]), "VC_MPIMASTER_NUM": "1",
			"VC_MPIWORKER_HOSTS": strings.Join(workers, ","), "VC_MPIWORKER_NUM": fmt.Sprint(n - 1),
		}
	})
}

// slurmHosts returns the tasks of srun --ntasks-per-node=1.
func slurmHosts(t *testing.T, l *lab.Lab, n int) []host {
	t.Helper()
	list := fmt.Sprintf("gpu[07-%02d]-ib", 7+n-1)
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("gpu%02d-ib", 7+i))
	}
	return podsOf(t, l, names, func(name string) string { return name }, func(i int) map[string]string {
		return map[string]string{
			"SLURM_JOB_ID": "4242", "SLURM_JOBID": "4242", "SLURM_STEP_ID": "0",
			"SLURM_JOB_NODELIST": list, "SLURM_NODELIST": list, "SLURM_STEP_NODELIST": list,
			"SLURM_JOB_NUM_NODES": fmt.Sprint(n), "SLURM_NNODES": fmt.Sprint(n),
			"SLURM_NTASKS": fmt.Sprint(n), "SLURM_NPROCS": fmt.Sprint(n),
			"SLURM_NODEID": fmt.Sprint(i), "SLURM_PROCID": fmt.Sprint(i), "SLURM_LOCALID": "0",
			"SLURM_TASKS_PER_NODE":      fmt.Sprintf("1(x%d)", n),
			"SLURM_STEP_TASKS_PER_NODE": fmt.Sprintf("1(x%d)", n),
			"SLURM_GPUS_ON_NODE":        "2",
		}
	})
}

// sageMakerHosts returns hosts that know their rank and peers only from a file.
func sageMakerHosts(t *testing.T, l *lab.Lab, n int) []host {
	t.Helper()
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("algo-%d", i+1))
	}
	hosts := podsOf(t, l, names, func(name string) string { return name }, func(int) map[string]string {
		return map[string]string{"TRAINING_JOB_NAME": "allreduce-2024"}
	})
	for i := range hosts {
		config, err := json.Marshal(map[string]any{
			"current_host": names[i], "hosts": names, "network_interface_name": "eth0",
		})
		require.NoError(t, err)
		hosts[i].file(t, "/opt/ml/input/config/resourceconfig.json", string(config))
		hosts[i].overlay = []string{"/opt"}
	}
	return hosts
}

// file puts a file into a container.
func (h *host) file(t *testing.T, path, text string) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	h.binds[path] = name
}

// TestMPIJob runs Kubeflow's MPIJob without any flag or variable of paiinit: the launcher has the list of workers, the
// workers know only their names, and all have the key that the operator generated.
func TestMPIJob(t *testing.T) {
	t.Parallel()
	const workers = 3
	for launcher, c := range map[string]struct {
		command []string
		env     map[string]string
		line    string
	}{
		"openmpi": {launchers["openmpi"], map[string]string{
			"OMPI_MCA_orte_keep_fqdn_hostnames": "true", "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
			"OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10", "OMPI_MCA_orte_set_default_slots": "1",
		}, "%s slots=1\n"},
		"mpich": {launchers["mpich"], map[string]string{
			"HYDRA_HOST_FILE": "/etc/mpi/hostfile", "HYDRA_LAUNCH_EXTRA_ARGS": "-o ConnectionAttempts=10",
		}, "%s:1\n"},
	} {
		t.Run(launcher, func(t *testing.T) {
			l := newLab(t)
			names := append([]string{"pi-launcher"}, numbered("pi-worker-%d", workers)...)
			resolve := func(name string) string { return name + ".pi" }
			hosts := podsOf(t, l, names, resolve, func(i int) map[string]string {
				env := map[string]string{"K_MPI_JOB_ROLE": "worker", "KUBERNETES_SERVICE_HOST": "10.96.0.1"}
				if i == 0 {
					env["K_MPI_JOB_ROLE"] = "launcher"
					env["NVIDIA_VISIBLE_DEVICES"], env["NVIDIA_DRIVER_CAPABILITIES"] = "", ""
					for name, value := range c.env {
						env[name] = value
					}
				}
				return env
			})
			hostfile := ""
			for i := range hosts {
				h := &hosts[i]
				delete(h.env, "PAIINIT_SECRET")
				l.Name(h.name, h.machine.Addr) // the pods' search list completes the short name
				h.tmpfs, h.overlay = []string{"/root"}, []string{"/etc"}
				h.file(t, "/root/.ssh/id_rsa",
					"-----BEGIN EC PRIVATE KEY-----\nnot one, but as long\n-----END EC PRIVATE KEY-----\n")
				if i > 0 {
					l.Name(h.name+".pi.default.svc", h.machine.Addr)
					hostfile += fmt.Sprintf(c.line, h.name+".pi.default.svc")
				}
			}
			hosts[0].file(t, "/etc/mpi/hostfile", hostfile)
			var containers []*lab.Container
			for i := range slices.Backward(hosts) { // the launcher starts last
				command := []string{}
				if i == 0 {
					command = append(slices.Clone(c.command), "python3", allreduce)
				}
				containers = append(containers, hosts[i].start(t, command...))
			}
			require.Equal(t, same(1+workers, 0), statuses(t, containers))
			require.Contains(t, stdout(containers[workers]), "allreduce over 3 ranks on 3 hosts: sum = 6, expected 6")
			waitLine(t, containers[0], "size=4")
		})
	}
}
