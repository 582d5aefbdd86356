package hostfile

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// containers have the hosts, and are called worker-0 and so on.
func containers(hosts ...string) []Container {
	var out []Container
	for i, h := range hosts {
		out = append(out, Container{Host: h, Alias: "worker-" + strconv.Itoa(i)})
	}
	return out
}

func TestNames(t *testing.T) {
	for _, tt := range []struct {
		name     string
		in, want []string
	}{
		{"plain and unique", []string{"a1", "b2"}, []string{"a1", "b2"}},
		{"two containers on one host", []string{"node", "node", "other"}, []string{"worker-0", "worker-1", "other"}},
		{"a dot would be cut off", []string{"a.example.org", "b"}, []string{"worker-0", "b"}},
		{"a number would be an address", []string{"123456789012", "b"}, []string{"worker-0", "b"}},
		{"the name of the own role and index", []string{"worker-0", "worker-1"}, []string{"worker-0", "worker-1"}},
		{"the name of another's role and index", []string{"worker-1", "x"}, []string{"worker-0", "x"}},
		{"an underscore ends Open MPI's daemons", []string{"a_b", "c"}, []string{"worker-0", "c"}},
		{"a word of Open MPI's", []string{"port", "c"}, []string{"worker-0", "c"}},
	} {
		t.Run(tt.name, func(t *testing.T) { require.Equal(t, tt.want, Names(containers(tt.in...))) })
	}
	roles := containers("node", "node")
	roles[0].Alias, roles[1].Alias = "hvd_worker-0", "ps.server-1"
	require.Equal(t, []string{"rank-0", "rank-1"}, Names(roles))
}
