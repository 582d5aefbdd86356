package envspec_test

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/envspec"
)

// Only OpenPAI before 0.11 tells no ssh ports of other tasks, so that paiinit listens on a server's port.
func TestServerPort(t *testing.T) {
	for name, want := range map[string]bool{
		"openpai/classic-C-worker-1": true, "openpai/classic-C-master-0": true, "openpai/short-list": true,
		"openpai/classic-B-worker-1": false, "openpai/v1-A-master-0": false, "openpai/override-peers": false,
		"azure/aml-A-worker-1": false,
	} {
		_, in := readFixture(t, "testdata/"+name+".txtar")
		job, err := envspec.Read(context.Background(), in)
		require.NoError(t, err, name)
		require.Equal(t, want, job.ServerPort, name)
	}
	_, in := readFixture(t, "testdata/openpai/classic-C-worker-1.txtar")
	in.Environ = append(in.Environ, "PAIINIT_PORT=4000")
	job, err := envspec.Read(context.Background(), in)
	require.NoError(t, err)
	require.False(t, job.ServerPort, "the port was chosen by hand")
}

func TestWithServerPorts(t *testing.T) {
	job := envspec.Job{Role: "ps.server", Index: 1, Roles: []envspec.Role{
		{Name: "worker", Count: 2}, {Name: "ps.server", Count: 2}, {Name: "short", Count: 3},
		{Name: "unheld", Count: 1},
	}}
	ports := map[string][]int{"worker": {25000, 25001}, "ps.server": {25002, 25003}, "short": {1, 2, 3}, "unheld": {0}}
	for _, tt := range []struct{ name, in, want string }{
		{"a list of hosts", "PAI_TASK_ROLE_worker_HOST_LIST=10.0.0.4:23000,10.0.0.4:23010",
			"PAI_TASK_ROLE_worker_HOST_LIST=10.0.0.4:25000,10.0.0.4:25001"},
		{"a role with a dot, IPv6", "PAI_TASK_ROLE_ps.server_HOST_LIST=[fd00::1]:23020,[fd00::2]:23030,",
			"PAI_TASK_ROLE_ps.server_HOST_LIST=[fd00::1]:25002,[fd00::2]:25003"},
		{
			"positions that are no indexes",
			"PAI_TASK_ROLE_short_HOST_LIST=10.0.0.4:1000",
			"PAI_TASK_ROLE_short_HOST_LIST=10.0.0.4:1000",
		},
		{
			"no port held",
			"PAI_TASK_ROLE_unheld_HOST_LIST=10.0.0.4:1000",
			"PAI_TASK_ROLE_unheld_HOST_LIST=10.0.0.4:1000",
		},
		{"another job's role", "PAI_TASK_ROLE_x_HOST_LIST=10.0.0.4:1000", "PAI_TASK_ROLE_x_HOST_LIST=10.0.0.4:1000"},
		{"the own port", "PAI_CURRENT_CONTAINER_PORT=23030", "PAI_CURRENT_CONTAINER_PORT=25003"},
		{"the own port, 2", "PAI_CONTAINER_HOST_PORT=23030", "PAI_CONTAINER_HOST_PORT=25003"},
		{
			"several own ports",
			"PAI_CONTAINER_HOST_http_PORT_LIST=23030,23031",
			"PAI_CONTAINER_HOST_http_PORT_LIST=25003,23031",
		},
		{"a blank one", "PAI_CURRENT_CONTAINER_PORT=", "PAI_CURRENT_CONTAINER_PORT="},
		{"labels", "PAI_CONTAINER_HOST_PORT_LIST=tensorboard:15452;http:23030,23031;ssh:15454;",
			"PAI_CONTAINER_HOST_PORT_LIST=tensorboard:15452;http:25003,23031;ssh:15454;"},
		{"the ssh port", "PAI_CONTAINER_SSH_PORT=15454", "PAI_CONTAINER_SSH_PORT=15454"},
		{"another variable", "A=b=c", "A=b=c"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := []string{"PATH=/bin", tt.in, tt.in} // OpenPAI sets some twice
			before := slices.Clone(in)
			got := job.WithServerPorts(in, func(role string, index int) int {
				return append(ports[role], 0, 0, 0)[index]
			})
			require.Equal(t, []string{"PATH=/bin", tt.want, tt.want}, got)
			require.Equal(t, before, in)
		})
	}
}
