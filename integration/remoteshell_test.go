package integration

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLaunchModes: launchers start their daemons in different ways through the remote shell. paiinit's is the only one
// on each host.
func TestLaunchModes(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		hosts   int
		command []string
		tree    bool // workers start workers
	}{
		"openmpi":                  {4, []string{"mpirun.openmpi", "hostname"}, false},
		"openmpi by absolute path": {4, []string{"/usr/bin/mpirun.openmpi", "hostname"}, false},
		"openmpi radix 4":          {9, []string{"mpirun.openmpi", "--mca", "routed_radix", "4", "hostname"}, true},
		"openmpi radix 2, absolute": {
			7, []string{"/usr/bin/mpirun.openmpi", "--mca", "routed_radix", "2", "hostname"}, true,
		},
		"openmpi without tree": {
			4, []string{"mpirun.openmpi", "--mca", "plm_rsh_no_tree_spawn", "1", "hostname"}, false,
		},
		"openmpi asks for shells": {
			4, []string{"mpirun.openmpi", "--mca", "plm_rsh_assume_same_shell", "0", "hostname"}, false,
		},
		"mpich":      {4, []string{"mpiexec.hydra", "hostname"}, false},
		"mpich, rsh": {4, []string{"mpiexec.hydra", "-launcher", "rsh", "hostname"}, false},
		"mpich to itself": {
			3, []string{"env", "HYDRA_LAUNCHER_AUTOFORK=0", "mpiexec.hydra", "hostname"}, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			hosts := withInput(peersHosts(t, newLab(t), tt.hosts))
			var want []string
			for i := range hosts {
				hosts[i].flags = append(hosts[i].flags, "--slots", "1", "--log-level", "debug")
				want = append(want, hosts[i].machine.Name)
			}
			containers := startAll(t, hosts, tt.command...)
			require.Equal(t, same(tt.hosts, 0), statuses(t, containers))
			got := strings.Fields(stdout(containers[0]))
			slices.Sort(got)
			slices.Sort(want)
			require.Equal(t, want, got)
			starter := regexp.MustCompile(`msg="ssh command".* remote=([^ ]+):\d+ `)
			var starters []string // addresses that started daemons on the workers
			for _, c := range containers[1:] {
				for _, found := range starter.FindAllStringSubmatch(stderr(c), -1) {
					starters = append(starters, found[1])
				}
			}
			own := hosts[0].machine.Addr.String()
			require.Contains(t, starters, own)
			isWorker := func(addr string) bool { return addr != own }
			require.Equal(t, tt.tree, slices.ContainsFunc(starters, isWorker), starters)
		})
	}
}

// tools runs the command lines of horovodrun 0.28.1 and of DeepSpeed's pdsh, and ends them as both do.
const tools = `
fail() { echo "failed: $*"; exit 9; }
check="ssh -o PasswordAuthentication=no -o StrictHostKeyChecking=no"
[ "$($check node-1 -p 12345 -o ConnectTimeout=10 hostname)" = node-1 ] || fail check
/bin/sh -c "$check node-2 -p 12345 -o ConnectTimeout=10 true" || fail check by a shell
[ "$($check node-1 -p 12345 -o ConnectTimeout=10 /usr/bin/python3 -c "'print(6 * 7)'")" = 42 ] || fail task
gloo='cd /usr > /dev/null 2>&1 ; env HOROVOD_RANK=3 HOROVOD_SIZE=4 sh -c '"'"'echo $PWD $HOROVOD_RANK'"'"
[ "$($check node-1 -p 12345 "$gloo")" = "/usr 3" ] || fail gloo

export PDSH_RCMD_TYPE=ssh PDSH_SSH_ARGS_APPEND="-p 12345"
said=$(pdsh -S -f 1024 -w node-1,node-2 export NCCL_DEBUG="INFO"\; cd /usr\; echo %n '$NCCL_DEBUG $PWD' |
	sort | tr '\n' ,)
[ "$said" = "node-1: 0 INFO /usr,node-2: 1 INFO /usr," ] || fail pdsh
pdsh -S -w node-1,node-2 'exit 4'; [ $? = 4 ] || fail pdsh status

# Both end their ssh in a way that leaves the remote command running with OpenSSH.
ended() {
	for i in $(seq 100); do ssh node-1 "kill -0 $1" 2>/dev/null || return 0; sleep 0.1; done
	fail "$2 lives on"
}
setsid sh -c "$check node-1 -p 12345 'echo \$\$ > /run/first; exec sleep 1000'" &
until one=$(ssh node-1 cat /run/first 2>/dev/null) && [ -n "$one" ]; do sleep 0.1; done
kill -TERM -$!
ended $one "what horovodrun stopped"
pdsh -w node-1 'echo $$ > /run/second; exec sleep 1000' &
until two=$(ssh node-1 cat /run/second 2>/dev/null) && [ -n "$two" ]; do sleep 0.1; done
kill -TERM $!
ended $two "what pdsh stopped"

# Files: rsync, and git over ssh.
mkdir -p /tmp/from/deep && seq 100000 > /tmp/from/deep/file
rsync -a -e ssh /tmp/from node-1:/tmp/ || fail rsync
sum=$(cksum /tmp/from/deep/file | cut -d' ' -f1-2)
[ "$(ssh node-1 cksum /tmp/from/deep/file | cut -d' ' -f1-2)" = "$sum" ] || fail rsync bytes
rsync -a -e "/run/bin/paiinit rsh" node-1:/tmp/from/ /tmp/back || fail rsync back
cmp /tmp/from/deep/file /tmp/back/deep/file || fail rsync bytes back
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
git init -q -b main /tmp/repo && cd /tmp/repo && cp /tmp/from/deep/file . || fail git
git add file && git commit -q -m one || fail git
ssh node-1 git init -q --bare -b main /tmp/bare.git && git push -q node-1:/tmp/bare.git main || fail push
git clone -q ssh://root@node-1/tmp/bare.git /tmp/clone && cmp file /tmp/clone/file || fail clone

# A hundred sessions at once to one host, which do not fit on one connection.
for i in $(seq 100); do ssh -n node-1 "sleep 1; exit $((i % 50 + 1))" & echo $! $((i % 50 + 1)); done > /tmp/started
while read -r pid status; do wait $pid; [ $? = $status ] || fail "session $status"; done < /tmp/started
echo all is well
`

func TestTools(t *testing.T) {
	hosts := peersHosts(t, newLab(t), 3)
	containers := startAll(t, hosts, "sh", "-c", tools)
	require.Equal(t, same(3, 0), statuses(t, containers), stdout(containers[0]))
	require.Equal(t, "all is well\n", stdout(containers[0]))
}

// TestScriptGoesOn: a script continues after its launcher failed and ended: paiinit ends only a launcher that hangs.
func TestScriptGoesOn(t *testing.T) {
	hosts := peersHosts(t, newLab(t), 2)
	containers := startAll(t, hosts, "sh", "-c",
		`ssh node-1 '"/usr/bin/hydra_pmi_proxy" --no-such-option' 2>/dev/null; echo "proxy $?"; sleep 8; echo went on`)
	require.Equal(t, same(2, 0), statuses(t, containers))
	require.Regexp(t, `^proxy [1-9]\d*\nwent on\n$`, stdout(containers[0]))
}
