package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/launch"
)

func TestLaunchers(t *testing.T) {
	proc := fstest.MapFS{"uptime": {Data: []byte("1 2")}, "7/comm": {Data: []byte("mpirun\n")}} // 7 has ended meanwhile
	add := func(pid int, comm, environ string, ticks int) {
		dir := fmt.Sprint(pid)
		proc[dir+"/comm"] = &fstest.MapFile{Data: []byte(comm + "\n")}
		proc[dir+"/environ"] = &fstest.MapFile{Data: []byte("PATH=/bin\x00" + environ + "\x00")}
		proc[dir+"/stat"] = &fstest.MapFile{Data: fmt.Appendf(nil, "%d (mpi) run) S 1 1 1 0 -1 4194560 1 1 1 1 1 1 1 1 20 0 1 0 %d 1 1", pid, ticks)}
	}
	const ours = "PAIINIT_AGENT=/run/paiinit/agent.sock"
	add(10, "prterun", ours, 1000)
	add(11, "prterun", ours, 9000)        // a later one
	add(12, "prterun", ours+".other", 10) // of another job
	add(13, "python3", ours, 10)
	add(14, "mpiexec.hydra", ours, 2000)
	proc["15/comm"] = &fstest.MapFile{Data: []byte("mpirun")}
	proc["15/environ"] = &fstest.MapFile{Data: []byte(ours)}
	proc["15/stat"] = &fstest.MapFile{Data: []byte("15 (mpirun) S")}
	require.Equal(t, []int{10, 14}, launchers(proc, ours, 20*time.Second))
	require.Empty(t, launchers(proc, ours, 0))
	rest := strings.Repeat(" 1", 46)
	proc["20/stat"] = &fstest.MapFile{Data: []byte("20 (ssh) Z 10 1" + rest + " 65280 0")} // exited with 255
	proc["21/stat"] = &fstest.MapFile{Data: []byte("21 (ssh) Z 14 1" + rest + " 9 0")}     // killed
	proc["22/stat"] = &fstest.MapFile{Data: []byte("22 (ssh) Z 10 1" + rest + " 0 0")}     // all well
	proc["23/stat"] = &fstest.MapFile{Data: []byte("23 (ssh) S 10 1" + rest + " 65280 0")} // runs
	proc["24/stat"] = &fstest.MapFile{Data: []byte("24 (ssh) Z 12 1" + rest + " 65280 0")} // of another job
	require.Equal(t, map[int]int{20: 255, 21: 137}, unnoticed(proc, ours))
	require.Empty(t, unnoticed(proc, "PAIINIT_AGENT=/none"))
	require.Empty(t, launchers(os.DirFS("/nowhere"), ours, time.Hour))
	require.Greater(t, sinceBoot(), time.Duration(0))
}

func TestDaemonsAreIdleWhenTheLastHasEnded(t *testing.T) {
	d := newDaemons()
	for _, host := range []string{"b", "a", "b"} {
		d.begun(host, launch.Daemon{Program: "orted", Hosts: 4})
	}
	d.begun("c", launch.Daemon{Program: "hydra_pmi_proxy"})
	d.ended()
	d.lose("the first is kept", true)
	require.Empty(t, d.idle)
	d.ended()
	require.Len(t, d.idle, 1)
	d.begun("a", launch.Daemon{Program: "prted", Hosts: 2})
	d.ended()
	require.Len(t, d.idle, 1, "only the latest counts, and nobody waits for a reader")
	d.lose("the second is not", false)
	_, lost, reached := d.now()
	require.Equal(t, "the first is kept", lost)
	require.Equal(t, []string{"a", "b", "c"}, reached)
	hosts, tree := d.told()
	require.Equal(t, 4, hosts)
	require.False(t, tree)
	d.begun("c", launch.Daemon{Program: "hydra_bstrap_proxy"})
	_, tree = d.told()
	require.True(t, tree)
}
