package launch

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLaunchersBelow(t *testing.T) {
	var all []Process
	add := func(pid, parent int, line string, variables ...string) {
		has := make(map[string]bool)
		for _, name := range variables {
			has[name] = true
		}
		all = append(all, Process{
			PID: pid, Parent: parent, Name: "x",
			Args:      func() []string { return strings.Fields(line) },
			Variables: func() map[string]bool { return has },
		})
	}
	add(20, 7, "sh train.sh")
	add(21, 20, "/usr/bin/python3 /usr/bin/horovodrun -np 4 x")
	add(22, 21, "mpirun -np 4 x") // started by horovodrun
	add(23, 20, "bash -lc y")
	add(24, 23, "mpirun -np 2 y")
	add(25, 24, "python3 y")
	add(26, 25, "mpirun -np 1 z")     // started by a rank
	add(27, 20, "horovodrun -np 1 z") // about to execute the real horovodrun
	add(30, 7, "mpirun w", "SSH_CONNECTION")
	add(40, 1, "mpirun v") // left the command's tree
	var found []int
	a := &Asks{Ours: func(pid int) bool { return pid == 27 }}
	for _, p := range a.launchersBelow(all, 7) {
		found = append(found, p.PID)
	}
	require.Equal(t, []int{21, 24}, found)
	require.Empty(t, a.launchersBelow(nil, 7))
}
