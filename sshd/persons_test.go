package sshd

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// Processes in a person's session belong to the person, and so do processes that left it while their parents live.
func TestPersonSessions(t *testing.T) {
	proc := fstest.MapFS{}
	for pid, stat := range map[string]string{
		"2":  "2 (paiinit) S 1 1 1",
		"3":  "3 (sh) S 2 3 3",     // leads alice's session
		"4":  "4 (ssh) S 3 3 3",    //
		"5":  "5 (setsid) S 4 5 5", //
		"6":  "6 (ssh) S 5 5 5",    //
		"7":  "7 (ssh) S 1 3 3",    // an orphan in the session
		"8":  "8 (ssh) S 1 8 8",    // an orphan with its own
		"9":  "9 (mpirun) S 2 9 9", // the job's
		"10": "10 (ssh) S 9 9 9",   //
		"11": "11 (sh) S 2 11 11",  // leads bob's
	} {
		proc[pid+"/stat"] = &fstest.MapFile{Data: []byte(stat + strings.Repeat(" 0", 46))}
	}
	var p PersonSessions
	require.Empty(t, p.Behind(proc, 4))
	p.Note(CommandEvent{PID: 3, Person: "alice"})
	p.Note(CommandEvent{PID: 9})
	p.Note(CommandEvent{PID: 11, Person: "bob"})
	p.Note(CommandEvent{Person: "nothing was started"})
	for pid, want := range map[int]string{
		0: "", 2: "", 3: "alice", 4: "alice", 5: "alice", 6: "alice", 7: "alice",
		8: "", 9: "", 10: "", 11: "bob", 99: "",
	} {
		require.Equal(t, want, p.Behind(proc, pid), pid)
	}
	p.Note(CommandEvent{PID: 3, Person: "alice", Done: true})
	require.Empty(t, p.Behind(proc, 4))
	require.Equal(t, "bob", p.Behind(proc, 11))
}
