package launch

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLaunchers(t *testing.T) {
	job := []Process{
		{PID: 9, Parent: 1, Name: "sh"},
		{PID: 10, Parent: 9, Name: "prterun", State: 'S', Started: 10 * time.Second},
		{PID: 11, Parent: 9, Name: "prterun", State: 'S', Started: 90 * time.Second}, // a later one
		{PID: 13, Parent: 9, Name: "python3", State: 'S', Started: time.Second},
		{PID: 14, Parent: 9, Name: "mpiexec.hydra", State: 'S', Started: 20 * time.Second},
		{PID: 15, Parent: 9, Name: "mpirun", State: 'Z', Started: time.Second}, // has ended
		{PID: 20, Parent: 10, Name: "ssh", State: 'Z', Exit: 65280},            // exited with 255
		{PID: 21, Parent: 14, Name: "ssh", State: 'Z', Exit: 9},                // killed
		{PID: 22, Parent: 10, Name: "ssh", State: 'Z'},                         // all well
		{PID: 23, Parent: 10, Name: "ssh", State: 'S', Exit: 65280},            // runs
	}
	require.Equal(t, []int{10, 14}, launchersBefore(job, 20*time.Second))
	require.Empty(t, launchersBefore(job, 0))
	require.Equal(t, map[int]int{20: 255, 21: 137}, unnoticed(job, launchersBefore(job, time.Hour)))
	require.Empty(t, unnoticed(job, nil))
	require.Empty(t, launchersBefore(nil, time.Hour))
	require.Greater(t, sinceBoot(), time.Duration(0))
}

func TestDaemonsAreIdleWhenTheLastHasEnded(t *testing.T) {
	d := NewSessions(Statuses{75, 69})
	for _, host := range []string{"b", "a", "b"} {
		d.begun(host, Daemon{Program: "orted", Hosts: 4}, false)
	}
	d.begun("c", Daemon{Program: "hydra_pmi_proxy"}, false)
	d.ended()
	d.lose("the first is kept", true)
	require.Empty(t, d.idle)
	d.ended()
	require.Len(t, d.idle, 1)
	d.begun("a", Daemon{Program: "prted", Hosts: 2}, false)
	d.ended()
	require.Len(t, d.idle, 1, "only the latest counts, and nobody waits for a reader")
	d.lose("the second is not", false)
	_, lost, reached := d.now()
	require.Equal(t, "the first is kept", lost)
	require.Equal(t, []string{"a", "b", "c"}, reached)
	hosts, tree := d.told()
	require.Equal(t, 4, hosts)
	require.False(t, tree)
	d.begun("c", Daemon{Program: "hydra_bstrap_proxy"}, false)
	_, tree = d.told()
	require.True(t, tree)
}

// Open MPI looks after its remote shells, hydra does not.
func TestDaemonsAreWatched(t *testing.T) {
	for program, want := range map[string]bool{
		"orted": true, "prted": true, "hydra_pmi_proxy": false, "pmi_proxy": false, "": false,
	} {
		d := NewSessions(Statuses{75, 69})
		require.False(t, d.isWatched())
		d.begun("a", Daemon{Program: program, Detached: program == "prted"}, false)
		require.Equal(t, want, d.isWatched(), program)
		d.begun("b", Daemon{}, true)
		require.Equal(t, want, d.isWatched(), program)
	}
}
