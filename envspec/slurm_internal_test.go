package envspec

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestExpandNodes compares expandNodes with scontrol show hostnames (22.05.8), except where scontrol reads a broken
// list as a name or refuses what later versions accept.
func TestExpandNodes(t *testing.T) {
	for list, want := range map[string]string{
		"node001,host2":           "node001 host2",
		"node[001-003,007]":       "node001 node002 node003 node007",
		"node[001,007-008],host2": "node001 node007 node008 host2",
		"n[08-11]":                "n08 n09 n10 n11",
		"n[8-11]":                 "n8 n9 n10 n11",
		"node[01-2]":              "node01 node02",
		"gpu-[1-2]-n[0-1]":        "gpu-1-n0 gpu-1-n1 gpu-2-n0 gpu-2-n1",
		"rack[0-1]node[0-3]": "rack0node0 rack0node1 rack0node2 rack0node3 rack1node0 rack1node1 " +
			"rack1node2 rack1node3",
		"compute-dy-c5n18xlarge-[1-2]": "compute-dy-c5n18xlarge-1 compute-dy-c5n18xlarge-2",
		"node[3,1-2]":                  "node3 node1 node2",
		"node[1,1]":                    "node1 node1",
		"node1,node1":                  "node1 node1",
		"fd00::1":                      "fd00::1",
		// Text after the last bracket.
		"a[1-2]-ib":           "a1-ib a2-ib",
		"lx[15,18].hpc.local": "lx15.hpc.local lx18.hpc.local",
	} {
		got, problem := expandNodes(list)
		require.Empty(t, problem, list)
		require.Equal(t, want, strings.Join(got, " "), list)
	}
	for list, want := range map[string]string{
		"":                          "empty name at 1",
		"a,,b":                      "empty name at 3",
		"a,":                        "empty name at 3",
		"tux[]":                     `invalid range "[]"`,
		"tux[a-b]":                  `invalid range "[a-b]"`,
		"tux[3-1]":                  `invalid range "[3-1]"`,
		"unk[0-1x2]":                `invalid range "[0-1x2]"`,
		"tux[1-]":                   `invalid range "[1-]"`,
		"tux[+1-2]":                 `invalid range "[+1-2]"`,
		"tux[1-3":                   `missing "]" at 8`,
		"tux1-3]":                   `"]" without "[" at 7`,
		"t[1[2]]":                   `second "[" at 4`,
		"n[0-999999999]":            "more than 65536 nodes",
		"n[0-99999],m[0-99999]":     "more than 65536 nodes",
		"n[0-999]m[0-999]":          "more than 65536 nodes",
		"n[0-18446744073709551615]": "more than 65536 nodes",
		"n[0-18446744073709551616]": `invalid range "[0-18446744073709551616]"`,
	} {
		_, problem := expandNodes(list)
		require.Equal(t, want, problem, list)
	}
}

func FuzzExpandNodes(f *testing.F) {
	for _, list := range []string{
		"node[001-003,007]", "gpu-[1-2]-n[0-1]", "a[1-2]-ib", "tux[1-3", "n[0-999999999]", ",",
	} {
		f.Add(list)
	}
	f.Fuzz(func(t *testing.T, list string) {
		nodes, problem := expandNodes(list)
		require.Equal(t, problem == "", len(nodes) > 0)
		require.LessOrEqual(t, len(nodes), maxTasks)
		require.False(t, slices.Contains(nodes, ""))
	})
}

func TestTasksOn(t *testing.T) {
	for _, c := range []struct {
		list string
		want []int
	}{
		{
			"2(x3),1", []int{2, 2, 2, 1, 0},
		}, {"4", []int{4, 0}}, {"1,2", []int{1, 2}}, {"x", []int{0}}, {"2(x", []int{0}}, {"", []int{0}},
	} {
		for node, want := range c.want {
			require.Equal(t, want, tasksOn(c.list, node), "%q, node %d", c.list, node)
		}
	}
}
