package integration

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/integration/lab"
)

// twoJobs runs two jobs of one user, with two ranks each, on one machine. The user cannot write to /run, as under Slurm
// and apptainer, so the state directories of all ranks are in /dev/shm.
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
ask() { # COMMAND...: like a user with docker exec
	setpriv --reuid 12345 --regid 12345 --clear-groups "$PAIINIT" "$@"
}
mkfifo a.up b.up d.up a.end b.end d.end; chmod 666 *
setpriv --reuid 12345 --regid 12345 --clear-groups "$PAIINIT" --job d -- sh -c 'echo >d.up; read x <d.end' & d=$!
read x <d.up; ask status | head -n 1; echo >d.end; wait $d; echo d $?
in_job='
echo $PAIINIT_JOB: status $(dirname $PAIINIT_AGENT | grep -c "/dev/shm/paiinit-12345-$PAIINIT_JOB-worker-0-")
echo $PAIINIT_JOB: all $("$PAIINIT" each "echo \$PAIINIT_JOB.\$PAIINIT_RANK" | sort | tr "\n" " ")
# A rank must ask its own paiinit, although a launcher forwards the PAIINIT_AGENT of rank 0.
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
# A second start of the same rank fails, and leaves the first one alone.
job b 23011 1; echo second $?
ask statsu; echo statsu $?
echo >a.end; wait $a0; echo a0 $?; wait $a1; echo a1 $?
echo >b.end; wait $b0; echo b0 $?; wait $b1; echo b1 $?
# paiinit detects a full file system before it waits for the ranks.
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
	require.Equal(t, `running: 1 of 1 rank is present
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

// squatters creates files as another user, 54321, in place of the state directories of user 12345.
const squatters = `
PAIINIT=/run/bin/paiinit
chmod 755 /run
export PAIINIT_SECRET="a secret of user 12345's own" TMPDIR=/tmp
cd /tmp
as() { uid=$1; shift; setpriv --reuid $uid --regid $uid --clear-groups "$@"; }
mkfifo up end s.up s.end; chmod 666 *
where() { as 12345 "$PAIINIT" --job d -- sh -c 'dirname $PAIINIT_AGENT'; }
shm=$(where)
case $shm in /dev/shm/paiinit-12345-d-*) ;; *) echo "state directory $shm"; exit 1 ;; esac
rm -rf "$shm"

as 54321 ln -s /tmp "$shm"; where; rm "$shm"
as 54321 sh -c 'echo >"$0"' "$shm"; where; rm "$shm"
as 54321 mkdir -m 777 "$shm"; tmp=$(where); echo $tmp; echo it holds $(ls "$shm" | wc -l); rmdir "$shm"
as 12345 rm -rf "$tmp"
for dir in "$shm" "$tmp"; do as 54321 mkdir -m 777 "$dir"; done
where; echo both $?
rmdir "$shm" "$tmp"

# The other user's paiinit in a directory with this user's name.
false=/dev/shm/paiinit-12345-d
as 54321 "$PAIINIT" --state-dir $false --job s -- sh -c "chmod 666 $false/*.sock; echo >s.up; read x <s.end" & s=$!
read x <s.up
as 12345 "$PAIINIT" status; echo alone $?
{ as 12345 "$PAIINIT" --job d -- sh -c 'echo >up; read x <end' || { ended=$?; echo >up; exit $ended; }; } & d=$!
read x <up
as 12345 "$PAIINIT" status | head -n 1
PAIINIT_AGENT=$false/agent.sock as 12345 "$PAIINIT" rsh localhost echo wrong; echo agent $?
PAIINIT_STATE_DIR=$false as 12345 "$PAIINIT" hosts; echo named $?
echo >end; wait $d; echo d $?
echo >s.end; wait $s; echo s $?
`

func TestPlacesTakenByAnotherUser(t *testing.T) {
	l := newLab(t)
	m := newMachines(t, l, 1)[0]
	c, err := m.Start(lab.Program{
		Args: []string{"sh", "-c", squatters}, Env: []string{path},
		Binds: map[string]string{"/run/bin/paiinit": paiinit},
	})
	require.NoError(t, err)
	require.Equal(t, []int{0}, statuses(t, []*lab.Container{c}), "%s", stdout(c))
	require.Regexp(t, `^/tmp/paiinit-12345-d-\S+
/tmp/paiinit-12345-d-\S+
/tmp/paiinit-12345-d-\S+
it holds 0
both 69
alone 69
running: 1 of 1 rank is present
agent 255
named 69
d 0
s 0
$`, stdout(c))
	says := stderr(c)
	require.Contains(t, says, "no directory for the state can be used (--state-dir)")
	require.Contains(t, says, "another user can write there")
	require.Contains(t, says, "paiinit is not running here")
	require.Contains(t, says, "paiinit rsh: localhost: asking the paiinit at /dev/shm/paiinit-12345-d/agent.sock: "+
		"user 54321 serves this socket instead of user 12345 or root; nothing was sent to it\n")
	require.Contains(t, says, "asking on /dev/shm/paiinit-12345-d/status.sock: the other end belongs to user 54321")
}
