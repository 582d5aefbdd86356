package launch

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

func TestOOMKills(t *testing.T) {
	const v1, v2 = "sys/fs/cgroup/memory/memory.oom_control", "sys/fs/cgroup/memory.events"
	two := []byte("low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
	one := []byte("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
	require.Equal(t, 2, oomKills(fstest.MapFS{v2: {Data: two}}))
	require.Equal(t, 1, oomKills(fstest.MapFS{v1: {Data: one}}))
	require.Equal(t, 0, oomKills(fstest.MapFS{v2: {Data: []byte("oom_kill x\n")}}))
	require.Equal(t, 0, oomKills(fstest.MapFS{}))
}
