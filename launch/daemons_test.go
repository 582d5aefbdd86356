package launch

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDaemonOf(t *testing.T) {
	for command, want := range map[string]Daemon{
		`( test ! -r ./.profile || . ./.profile;  orted -mca ess "env")`:           {Program: "orted"},
		` orted -mca ess "env" -mca ess_base_jobid "2664300544" --tree-spawn`:      {Program: "orted"},
		` orted -mca ess "env" --daemonize -mca ess_base_jobid "2664300544"`:       {Program: "orted", Detached: true},
		`prted --prtemca ess "env" --prtemca ess_base_num_procs "12" --tree-spawn`: {Program: "prted", Hosts: 12},
		`"/usr/bin/hydra_pmi_proxy" --control-port worker-0:41141 --rmk user`:      {Program: "hydra_pmi_proxy"},

		` orted -mca ess "env" -mca ess_base_vpid 2 -mca ess_base_num_procs "7"` +
			` -mca orte_node_regex "node-[1:0-6]@0(7)"`: {Program: "orted", Hosts: 7},
		`  PATH=/usr/bin:$PATH ; export PATH ; LD_LIBRARY_PATH=/l:${LD_LIBRARY_PATH:-} ; export LD ;` +
			` /usr/bin/orted -mca`: {Program: "orted"},
		`PRTE_PREFIX=/usr;export PRTE_PREFIX;LD_LIBRARY_PATH=/usr/lib;export LD_LIBRARY_PATH;` +
			`/usr/bin/prted --prtemca`: {Program: "prted"},
		`/opt/intel/bin//hydra_bstrap_proxy --upstream-host a` +
			` /opt/intel/bin/hydra_pmi_proxy --usize -1`: {Program: "hydra_bstrap_proxy"},

		`/opt/intel/5.1.3/bin/pmi_proxy --control-port a:41141 --proxy-id 1`: {Program: "pmi_proxy"},

		`hostname`:           {},
		`echo aborted`:       {},
		`python -m reported`: {},
		``:                   {},
	} {
		d, ok := DaemonOf(command)
		require.Equal(t, want, d, command)
		require.Equal(t, want != Daemon{}, ok, command)
		require.Equal(t, strings.Contains(command, "_proxy"), d.launcher().MissesFailures)
		require.Equal(t, strings.Contains(d.Program, "ted"), d.launcher().DaemonsStay)
		require.Equal(t, strings.Contains(command, "/intel/"), d.tree())
	}
}

func TestIsLauncher(t *testing.T) {
	for _, name := range []string{"mpirun", "/usr/bin/mpirun", "mpiexec.hydra", "/opt/x/prterun"} {
		require.True(t, IsLauncher(name), name)
	}
	for _, name := range []string{"", "sh", "mpirun.sh", "horovodrun", "/usr/bin/mpirun/x"} {
		require.False(t, IsLauncher(name), name)
	}
}
