package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/launch"
)

func TestLaunchers(t *testing.T) {
	all := processes{
		1:  {pid: 1, name: "paiinit"},
		9:  {pid: 9, parent: 1, name: "sh"},
		10: {pid: 10, parent: 9, name: "prterun", state: 'S', started: 10 * time.Second},
		11: {pid: 11, parent: 9, name: "prterun", state: 'S', started: 90 * time.Second}, // a later one
		12: {pid: 12, name: "prterun", state: 'S', started: time.Second},                 // of another container
		13: {pid: 13, parent: 9, name: "python3", state: 'S', started: time.Second},
		14: {pid: 14, parent: 9, name: "mpiexec.hydra", state: 'S', started: 20 * time.Second},
		15: {pid: 15, parent: 9, name: "mpirun", state: 'Z', started: time.Second}, // has ended
		20: {pid: 20, parent: 10, name: "ssh", state: 'Z', exit: 65280},            // exited with 255
		21: {pid: 21, parent: 14, name: "ssh", state: 'Z', exit: 9},                // killed
		22: {pid: 22, parent: 10, name: "ssh", state: 'Z'},                         // all well
		23: {pid: 23, parent: 10, name: "ssh", state: 'S', exit: 65280},            // runs
		24: {pid: 24, parent: 12, name: "ssh", state: 'Z', exit: 65280},            // of another container
	}
	job := all.below(1)
	require.Equal(t, []int{10, 14}, launchers(all, job, 20*time.Second))
	require.Empty(t, launchers(all, job, 0))
	require.Equal(t, map[int]int{20: 255, 21: 137}, unnoticed(all, launchers(all, job, time.Hour)))
	require.Empty(t, unnoticed(all, nil))
	require.Empty(t, launchers(nil, nil, time.Hour))
	require.Greater(t, sinceBoot(), time.Duration(0))
}

func TestDaemonsAreIdleWhenTheLastHasEnded(t *testing.T) {
	d := newDaemons()
	for _, host := range []string{"b", "a", "b"} {
		d.begun(host, launch.Daemon{Program: "orted", Hosts: 4}, false)
	}
	d.begun("c", launch.Daemon{Program: "hydra_pmi_proxy"}, false)
	d.ended()
	d.lose("the first is kept", true)
	require.Empty(t, d.idle)
	d.ended()
	require.Len(t, d.idle, 1)
	d.begun("a", launch.Daemon{Program: "prted", Hosts: 2}, false)
	d.ended()
	require.Len(t, d.idle, 1, "only the latest counts, and nobody waits for a reader")
	d.lose("the second is not", false)
	_, lost, reached := d.now()
	require.Equal(t, "the first is kept", lost)
	require.Equal(t, []string{"a", "b", "c"}, reached)
	hosts, tree := d.told()
	require.Equal(t, 4, hosts)
	require.False(t, tree)
	d.begun("c", launch.Daemon{Program: "hydra_bstrap_proxy"}, false)
	_, tree = d.told()
	require.True(t, tree)
}

// Open MPI looks after its remote shells, hydra does not.
func TestDaemonsAreWatched(t *testing.T) {
	for program, want := range map[string]bool{
		"orted": true, "prted": true, "hydra_pmi_proxy": false, "pmi_proxy": false, "": false,
	} {
		d := newDaemons()
		require.False(t, d.isWatched())
		d.begun("a", launch.Daemon{Program: program, Detached: program == "prted"}, false)
		require.Equal(t, want, d.isWatched(), program)
		d.begun("b", launch.Daemon{}, true)
		require.Equal(t, want, d.isWatched(), program)
	}
}
