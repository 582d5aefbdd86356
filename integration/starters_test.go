package integration

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/integration/lab"
)

// standIn installs a script under a launcher's name, first in PATH. The script treats its hosts as the launcher does.
func standIn(t *testing.T, hosts []host, name, script string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(file, []byte(script), 0o755))
	for i := range hosts {
		hosts[i].binds = map[string]string{"/run/image/" + name: file}
		hosts[i].env["PATH"] = "/run/image:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	}
}

// standInHorovodrun acts like a version after 0.19: it checks its hosts by ssh, and then starts the processes there.
const standInHorovodrun = `#!/bin/sh
# from horovod.runner.launch
echo horovodrun "$@"
while :; do
	case $1 in
	-np) shift 2 ;;
	-H) hosts=$2; shift 2 ;;
	--network-interface) [ -e /sys/class/net/$2 ] || exit 9; shift 2 ;;
	*) break ;;
	esac
done
for h in $(echo ${hosts:-localhost:1} | tr , " "); do
	name=${h%:*}
	if [ $name = localhost ] || [ $name = $(hostname) ]; then
		sh -c "$*"
	else
		ssh -o PasswordAuthentication=no -o StrictHostKeyChecking=no $name -o ConnectTimeout=10 true || exit 1
		ssh -o PasswordAuthentication=no -o StrictHostKeyChecking=no $name "$*"
	fi
done
`

// TestHorovodrunGetsHosts: horovodrun gets the hosts and, if all ranks have the same interface, that interface.
func TestHorovodrunGetsHosts(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		command []string
		want    string
	}{
		"itself": {
			[]string{"horovodrun", "-np", "6", "hostname"},
			"horovodrun -H node-0:2,node-1:2,node-2:2 --network-interface eth0 -np 6 hostname\n" +
				"node-0\nnode-1\nnode-2\n",
		},
		"in a script": {
			[]string{"sh", "-c", "horovodrun -np 3 hostname; exit $?"},
			"horovodrun -H node-0:2,node-1:1 --network-interface eth0 -np 3 hostname\nnode-0\nnode-1\n",
		},
		"one host": {[]string{"horovodrun", "-np", "2", "hostname"}, "horovodrun -H node-0:2 -np 2 hostname\nnode-0\n"},
		"own network": {
			[]string{"env", "NCCL_SOCKET_IFNAME=ib0", "horovodrun", "-np", "3", "hostname"},
			"horovodrun -H node-0:2,node-1:1 -np 3 hostname\nnode-0\nnode-1\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			hosts := peersHosts(t, newLab(t), 3)
			standIn(t, hosts, "horovodrun", standInHorovodrun)
			containers := startAll(t, hosts, tt.command...)
			require.Equal(t, same(3, 0), statuses(t, containers))
			require.Equal(t, tt.want, stdout(containers[0]))
			require.NotContains(t, stderr(containers[0]), "level=WARN")
		})
	}
}

// TestDeepSpeedInScript: a deepspeed in a script finds its hosts; the check recognises it among the processes that the
// script starts.
func TestDeepSpeedInScript(t *testing.T) {
	t.Parallel()
	const script = `#!/bin/sh
[ -e /job/hostfile ] || { echo no hostfile; while ! [ -e /run/seen ]; do sleep 0.1; done; exit 0; }
cat /job/hostfile
for h in $(cut -d" " -f1 /job/hostfile); do PDSH_RCMD_TYPE=ssh ssh $h hostname >/dev/null; done
[ "$1" = --num_nodes ] || ssh $(sed -n "2s/ .*//p" /job/hostfile) "echo on \$PAIINIT_RANK"
`
	for name, tt := range map[string]struct {
		command []string
		status  int
		out     string
		says    string
	}{
		"all hosts": {
			[]string{"sh", "-c", "deepspeed train.py; exit $?"}, 0, "node-0 slots=2\nnode-1 slots=2\non 1\n", "",
		},
		"one of them": {
			[]string{"sh", "-c", "deepspeed --num_nodes 1 train.py; exit $?"}, 0,
			"node-0 slots=2\nnode-1 slots=2\n", "",
		},
		"without its file": {
			[]string{"sh", "-c", "rm /job/hostfile; deepspeed train.py; exit $?"}, 69, "no hostfile\n",
			"deepspeed ended with status 0, but did not use the hosts of this job: " +
				"it asked for at least 2 and started on at most 1 (worker-0). " +
				"deepspeed looks for its hosts in /job/hostfile, which does not exist",
		},
	} {
		t.Run(name, func(t *testing.T) {
			hosts := peersHosts(t, newLab(t), 2)
			standIn(t, hosts, "deepspeed", script)
			containers := startAll(t, hosts, tt.command...)
			if tt.status != 0 {
				waitLine(t, containers[0], "a launcher has no host list and starts on this host only")
				require.NoError(t, os.WriteFile(filepath.Join(rootOf(t, containers[0]), "run/seen"), nil, 0o644))
			}
			require.Equal(t, same(2, tt.status), statuses(t, containers))
			require.Equal(t, tt.out, stdout(containers[0]))
			require.Contains(t, stderr(containers[1]), tt.says)
			require.NotContains(t, stderr(containers[0]), "every rank runs the command")
		})
	}
}

// rootOf returns the path of a container's root directory on this host.
func rootOf(t *testing.T, c *lab.Container) string {
	t.Helper()
	processes, err := c.Processes()
	require.NoError(t, err)
	require.NotEmpty(t, processes)
	return filepath.Join("/proc", strconv.Itoa(processes[0].PID), "root")
}
