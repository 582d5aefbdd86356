package integration

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/integration/lab"
)

// twoJobs runs two jobs of two ranks each of one user on one machine, where /run cannot be written: Slurm and apptainer
// have it so. Their state directories lie side by side in /dev/shm.
const twoJobs = `
PAIINIT=/run/bin/paiinit
chmod 755 /run
export PAIINIT_SECRET="a secret that both jobs have" PAIINIT_TIMEOUT=60s TMPDIR=/tmp
cd /tmp
job() { # NAME PORT RANK [COMMAND...]
	name=$1 port=$2 rank=$3; shift 3
	setpriv --reuid 12345 --regid 12345 --clear-groups "$PAIINIT" --job $name --rank $rank \
		--peers 127.0.0.1:$port,127.0.0.1:$((port + 1)) -- "$@"
}
ask() { # COMMAND...: as someone who comes in with docker exec
	setpriv --reuid 12345 --regid 12345 --clear-groups "$PAIINIT" "$@"
}
mkfifo a.up b.up d.up a.end b.end d.end; chmod 666 *
setpriv --reuid 12345 --regid 12345 --clear-groups "$PAIINIT" --job d -- sh -c 'echo >d.up; read x <d.end' & d=$!
read x <d.up; ask status | head -n 1; echo >d.end; wait $d; echo d $?
in_job='
echo $PAIINIT_JOB: status $(dirname $PAIINIT_AGENT | grep -c "/dev/shm/paiinit-12345-$PAIINIT_JOB-worker-0-")
echo $PAIINIT_JOB: all $("$PAIINIT" each "echo \$PAIINIT_JOB.\$PAIINIT_RANK" | sort | tr "\n" " ")
# What a launcher forwards to the other ranks does not change which paiinit they ask.
forwarded=PAIINIT_AGENT=$PAIINIT_AGENT
echo $PAIINIT_JOB: forwarded $("$PAIINIT" rsh worker-1 "$forwarded $PAIINIT status | grep -o \"this is rank .\"
	$forwarded $PAIINIT rsh localhost \"echo here is \\\$PAIINIT_RANK\"")
echo >$PAIINIT_JOB.up; read x <$PAIINIT_JOB.end; exit $1'
export PAIINIT
job a 23001 1 & a1=$!
job a 23001 0 sh -c "$in_job" sh 3 & a0=$!
read x <a.up
job b 23011 1 & b1=$!
job b 23011 0 sh -c "$in_job" sh 4 & b0=$!
read x <b.up
ask hosts; echo several $?
PAIINIT_STATE_DIR=$(ls -d /dev/shm/paiinit-12345-b-worker-1-*) ask status | grep -o 'this is rank .'
# The next start of the same rank is a mistake, and does not harm.
job b 23011 1; echo second $?
ask statsu; echo statsu $?
echo >a.end; wait $a0; echo a0 $?; wait $a1; echo a1 $?
echo >b.end; wait $b0; echo b0 $?; wait $b1; echo b1 $?
# A full place is found before the ranks are awaited.
for full in /dev/shm /tmp; do mount -t tmpfs -o size=4k,nr_inodes=1000 tmpfs $full; done; chmod 1777 /dev/shm /tmp
job c 23021 0 true; echo full $?
`

func TestTwoJobsOfOneUser(t *testing.T) {
	l := newLab(t)
	m := newMachines(t, l, 1)[0]
	c, err := m.Start(lab.Program{
		Args: []string{"sh", "-c", twoJobs}, Env: []string{path}, Binds: map[string]string{"/run/bin/paiinit": paiinit},
	})
	require.NoError(t, err)
	require.Equal(t, []int{0}, statuses(t, []*lab.Container{c}))
	require.Equal(t, `running: 1 of 1 ranks are present
d 0
a: status 1
a: all 0: a.0 1: a.1
a: forwarded this is rank 1 here is 1
b: status 1
b: all 0: b.0 1: b.1
b: forwarded this is rank 1 here is 1
several 64
this is rank 1
second 64
statsu 64
a0 3
a1 3
b0 4
b1 4
full 69
`, stdout(c))
	require.Contains(t, stderr(c), "paiinits are running here, say which one with PAIINIT_STATE_DIR")
	require.Contains(t, stderr(c), "no room for the host lists: no space left on device")
	require.Contains(t, stderr(c), "paiinit is already running in this container: worker-1 (rank 1) of job b")
}
