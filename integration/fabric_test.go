package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/integration/lab"
)

// withInfiniBand gives a host the files of one InfiniBand device. The device node is an ordinary file.
func withInfiniBand(t *testing.T, h host, device string, key string) host {
	t.Helper()
	dir := t.TempDir()
	port := "class/infiniband/" + device + "/ports/1/"
	for name, text := range map[string]string{
		"class/infiniband/" + device + "/node_guid": "0015:5dff:fe33:" + device[len(device)-1:] + "f01",
		"class/infiniband/" + device + "/fw_ver":    "20.31.1014",
		"class/infiniband_verbs/uverbs0/ibdev":      device,
		"class/infiniband_verbs/uverbs0/dev":        "231:192",
		"class/net/lo/operstate":                    "unknown",
		port + "state":                              "4: ACTIVE",
		port + "phys_state":                         "5: LinkUp",
		port + "rate":                               "200 Gb/sec (4X HDR)",
		port + "link_layer":                         "InfiniBand",
		port + "lid":                                "0x301",
		port + "sm_lid":                             "0x1",
		port + "pkeys/0":                            key,
		port + "gids/0":                             "fe80:0000:0000:0000:0015:5dff:fe33:ff01",
		"nodes/uverbs0":                             "",
		"nodes/rdma_cm":                             "",
	} {
		file := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(text+"\n"), 0o666))
	}
	h.tmpfs = append(slices.Clone(h.tmpfs), "/dev")
	h.binds = map[string]string{
		"/sys/class": filepath.Join(dir, "class"), "/dev/infiniband": filepath.Join(dir, "nodes"),
		"/dev/shm": t.TempDir(),
	}
	for _, node := range []string{"null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts"} {
		h.binds["/dev/"+node] = "/dev/" + node
	}
	return h
}

// TestNamesOfDevices: hosts whose devices have different names get their own names, in each way in which a launcher
// carries its environment to other hosts.
func TestNamesOfDevices(t *testing.T) {
	t.Parallel()
	show := []string{"sh", "-c",
		`echo "$(hostname) ucx=$UCX_NET_DEVICES nccl=$NCCL_IB_HCA file=$(cat "$UCX_CONFIG_DIR/ucx.conf")"`}
	openMPI := []string{"mpirun", "-npernode", "1"}
	mpich := []string{"mpiexec.hydra", "-ppn", "1", "-n", "2"}
	for name, tt := range map[string]struct {
		devices [2]string
		command []string
		want    []string
	}{
		"openmpi, other names": {[2]string{"mlx5_0", "mlx5_1"}, openMPI, []string{
			"node-0 ucx= nccl==mlx5_0:1 file=UCX_NET_DEVICES=mlx5_0:1",
			"node-1 ucx=mlx5_1:1 nccl==mlx5_1:1 file=UCX_NET_DEVICES=mlx5_1:1",
		}},
		"mpich, other names": {[2]string{"mlx5_0", "mlx5_1"}, mpich, []string{
			"node-0 ucx= nccl= file=UCX_NET_DEVICES=mlx5_0:1",
			"node-1 ucx=mlx5_1:1 nccl==mlx5_1:1 file=UCX_NET_DEVICES=mlx5_1:1",
		}},
		"openmpi, same names": {[2]string{"mlx5_0", "mlx5_0"}, openMPI, []string{
			"node-0 ucx=mlx5_0:1 nccl==mlx5_0:1 file=UCX_NET_DEVICES=mlx5_0:1",
			"node-1 ucx=mlx5_0:1 nccl==mlx5_0:1 file=UCX_NET_DEVICES=mlx5_0:1",
		}},
		"mpich, same names": {[2]string{"mlx5_0", "mlx5_0"}, mpich, []string{
			"node-0 ucx=mlx5_0:1 nccl==mlx5_0:1 file=UCX_NET_DEVICES=mlx5_0:1",
			"node-1 ucx=mlx5_0:1 nccl==mlx5_0:1 file=UCX_NET_DEVICES=mlx5_0:1",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			hosts := withInput(peersHosts(t, newLab(t), 2))
			for i := range hosts {
				hosts[i] = withInfiniBand(t, hosts[i], tt.devices[i], "0x8003")
			}
			containers := startAll(t, hosts, append(slices.Clone(tt.command), show...)...)
			require.Equal(t, same(2, 0), statuses(t, containers))
			require.Contains(t, stderr(containers[0]), `verdict="InfiniBand on all ranks"`)
			lines := strings.Split(strings.TrimSpace(stdout(containers[0])), "\n")
			slices.Sort(lines)
			require.Equal(t, tt.want, lines)
		})
	}
}

// TestFabricTable: paiinit rdma --all on any rank shows the whole job, and marks the value in which one rank differs.
func TestFabricTable(t *testing.T) {
	hosts := peersHosts(t, newLab(t), 3)
	hosts[0] = withInfiniBand(t, hosts[0], "mlx5_0", "0x8003")
	hosts[1] = withInfiniBand(t, hosts[1], "mlx5_0", "0x8003")
	hosts[2] = withInfiniBand(t, hosts[2], "mlx5_0", "0x8004")
	containers := startAll(t, hosts, "sh", "-c", `/run/bin/paiinit rdma --all; echo "status $?"
		/run/bin/paiinit rsh node-2 /run/bin/paiinit rdma --all --json; exit 0`)
	require.Equal(t, same(3, 0), statuses(t, containers))
	require.Contains(t, stderr(containers[0]), `verdict="TCP: not every rank can use InfiniBand" `+
		`ranks="rank 2 worker-2 (no partition key in common)"`)
	table, rest, found := strings.Cut(stdout(containers[0]), "status 69\n")
	require.True(t, found, stdout(containers[0]))
	require.Contains(t, table, "verdict: TCP: not every rank can use InfiniBand\n"+
		"    rank 2 node-2 (no partition key in common)\n")
	require.Regexp(t, `(?m)^1 +node-1 +1 x InfiniBand 200 Gb/s +mlx5_0:1 +0x8003 +20.31.1014 `, table)
	require.Regexp(t, `(?m)^2 +node-2 +1 x InfiniBand 200 Gb/s +mlx5_0:1 +0x8004 \* +20.31.1014 `, table)
	var answer struct {
		Fabric string
		Ranks  []struct {
			Name   string
			Report struct{ Devices []struct{ Name string } }
		}
	}
	require.NoError(t, json.Unmarshal([]byte(rest), &answer), rest)
	require.Equal(t, "none", answer.Fabric)
	require.Len(t, answer.Ranks, 3)
	for i, r := range answer.Ranks {
		require.Equal(t, fmt.Sprintf("node-%d", i), r.Name)
		require.Equal(t, "mlx5_0", r.Report.Devices[0].Name)
	}
}

// TestLateFabric: a container that still looks at its devices counts as present, but the launch waits for its findings,
// because the verdict depends on all of them.
func TestLateFabric(t *testing.T) {
	t.Parallel()
	// start starts two hosts. The second one's kernel tells the state of its port only when say does.
	start := func(t *testing.T, flags ...string) (containers []*lab.Container, say func(string)) {
		hosts := peersHosts(t, newLab(t), 2)
		for i := range hosts {
			hosts[i] = withInfiniBand(t, hosts[i], "mlx5_0", "0x8003")
			hosts[i].flags = append(flags, "--log-level", "debug")
		}
		state := filepath.Join(hosts[1].binds["/sys/class"], "infiniband/mlx5_0/ports/1/state")
		require.NoError(t, os.Remove(state))
		require.NoError(t, syscall.Mkfifo(state, 0o600))
		containers = startAll(t, hosts, "sh", "-c", "echo launched; sleep 0.1")
		waitLine(t, containers[0], `msg="heard of a rank"`)
		return containers, func(text string) { require.NoError(t, os.WriteFile(state, []byte(text+"\n"), 0)) }
	}
	why := "worker-1 (it is present, but still examines its devices)"

	t.Run("the port is active", func(t *testing.T) {
		containers, say := start(t, "--rdma", "require")
		for _, c := range containers {
			var status struct {
				Phase string
				Ranks []struct{ State, Reason, Fabric string }
			}
			out, err := c.Exec(t.Context(), "/run/bin/paiinit", "status", "--json")
			require.NoError(t, err)
			require.NoError(t, json.Unmarshal(out, &status), string(out))
			require.Equal(t, "gathering", status.Phase)
			require.Len(t, status.Ranks, 2)
			require.Equal(t, "present", status.Ranks[1].State)
			require.Equal(t, "it is present, but still examines its devices", status.Ranks[1].Reason)
			require.Empty(t, status.Ranks[1].Fabric)
			out, err = c.Exec(t.Context(), "sh", "-c", "/run/bin/paiinit wait --timeout 10ms 2>&1; echo status $?")
			require.NoError(t, err)
			require.Contains(t, string(out), "1 of 2 ranks are present; missing: "+why)
			require.Contains(t, string(out), "status 75")
		}
		say("4: ACTIVE")
		require.Equal(t, same(2, 0), statuses(t, containers))
		require.Contains(t, stderr(containers[0]), `verdict="InfiniBand on all ranks"`)
		require.Equal(t, "launched\n", stdout(containers[0]))
		require.NotContains(t, stderr(containers[0])+stderr(containers[1]), "epoch=2")
	})
	t.Run("the port is down", func(t *testing.T) {
		containers, say := start(t, "--rdma", "require")
		say("1: DOWN")
		require.Equal(t, same(2, 69), statuses(t, containers))
		for _, c := range containers {
			require.Contains(t, stderr(c),
				"RDMA is required, but not usable on every rank: rank 1 worker-1 (no active port)")
			require.Empty(t, stdout(c))
		}
	})
	t.Run("the kernel never answers", func(t *testing.T) {
		containers, _ := start(t, "--timeout", "10s")
		require.Equal(t, same(2, 75), statuses(t, containers))
		for _, c := range containers {
			require.Contains(t, stderr(c),
				"1 of 2 ranks are present; missing: worker-1: it is present, but still examines its devices")
			require.Empty(t, stdout(c))
		}
	})
	t.Run("the rank is stopped", func(t *testing.T) {
		containers, _ := start(t)
		require.NoError(t, containers[1].Signal(syscall.SIGTERM))
		require.Equal(t, same(2, 128+15), statuses(t, containers))
		require.Empty(t, stdout(containers[0]))
	})
}

// TestOpenMPIWithoutDevices: between hosts without verbs devices Open MPI uses TCP and prints no warnings.
func TestOpenMPIWithoutDevices(t *testing.T) {
	hosts := peersHosts(t, newLab(t), 2)
	for _, h := range hosts {
		h.env["PAIINIT_LOG_LEVEL"] = "info"
	}
	containers := startAll(t, hosts, "mpirun", "python3", allreduce)
	require.Equal(t, same(2, 0), statuses(t, containers))
	for _, c := range containers {
		for _, line := range linesOfLog(c) {
			require.Regexp(t, `^time=\S+ level=INFO `, line, "only paiinit writes to stderr")
		}
	}
	require.Contains(t, stderr(containers[0]), `fabric="TCP: no rank has a verbs device"`)
}
