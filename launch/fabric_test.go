package launch

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
)

func TestFabricGoldens(t *testing.T) {
	ports := []string{"mlx5_0:1", "mlx5_2:1"}
	for name, f := range map[string]Fabric{
		"verbs": {Kind: FabricVerbs, Ports: ports, SamePorts: true, Devices: true, ConfigDir: "/run/paiinit"},
		"verbs-required": {
			Kind: FabricVerbs, Ports: ports, SamePorts: true, Devices: true, Required: true,
			ConfigDir: "/run/paiinit",
		},
		"efa":            {Kind: FabricEFA, Devices: true},
		"efa-required":   {Kind: FabricEFA, Devices: true, Required: true},
		"tcp-no-devices": {Kind: FabricTCP, Why: "no rank has a verbs device"},
		"tcp":            {Kind: FabricTCP, Devices: true, Why: "not every rank can use InfiniBand"},
		"direct": {
			Kind: FabricTCP, NetworkDirect: true,
			Why: "Azure Network Direct on all ranks, for Intel MPI only",
		},
		"direct-required": {
			Kind: FabricTCP, NetworkDirect: true, Devices: true, Required: true,
			Why: "Azure Network Direct on all ranks, for Intel MPI only",
		},
		"tcp-gpus": {
			Kind: FabricTCP, Devices: true, GPUs: true, NoPeerMemory: true,
			Why: "not every rank can use InfiniBand",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got strings.Builder
			for _, v := range append(f.Job(), f.Own()...) {
				require.NotEmpty(t, v.Reason)
				fmt.Fprintf(&got, "%s=%s\n    %s\n", v.Name, v.Value, v.Reason)
			}
			file := filepath.Join("testdata", "fabric-"+name+".golden")
			if *update {
				require.NoError(t, os.WriteFile(file, []byte(got.String()), 0o644))
			}
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	require.Empty(t, Fabric{}.Job())
	require.Empty(t, Fabric{}.Own())
	require.Empty(t, Fabric{}.UCXConfig())
}

// TestFabricTravels checks that names of rank 0's devices reach other hosts only if these have the same names.
func TestFabricTravels(t *testing.T) {
	f := Fabric{Kind: FabricVerbs, Ports: []string{"mlx5_1:1"}}
	require.Equal(t, "UCX_NET_DEVICES=mlx5_1:1\n", f.UCXConfig())
	names := func(vars []Var) (names []string) {
		for _, v := range vars {
			names = append(names, v.Name)
		}
		return names
	}
	require.Equal(t, []string{"UCX_NET_DEVICES", "NCCL_IB_HCA"}, names(f.Own()))
	require.Equal(t, []string{"NCCL_IB_HCA"}, names(f.Travelling([]string{"/usr/bin/mpirun", "x"})))
	require.Empty(t, f.Travelling([]string{"/usr/bin/mpiexec.hydra", "x"}))
	f.SamePorts = true
	require.Equal(t, f.Own(), f.Travelling([]string{"mpiexec.hydra"}))
}

// TestRealHydraEnvironment shows why names may not travel with hydra: the environment of mpiexec overrides that of the
// session in which its proxy was started, and only the variables that mpiexec lacks come from the session.
func TestRealHydraEnvironment(t *testing.T) {
	mpiexec, err := Look("mpiexec.hydra", []string{"PATH=" + defaultPath}, "")
	if err != nil {
		missing(t, err.Error())
	}
	dir := t.TempDir()
	agent := filepath.Join(dir, "agent")
	const script = "#!/bin/sh\nshift 2\nexport BOTH=session ONLY=session\nexec /bin/sh -c \"$*\"\n"
	require.NoError(t, os.WriteFile(agent, []byte(script), 0o755))
	hosts := filepath.Join(dir, "hosts")
	require.NoError(t, os.WriteFile(hosts, []byte("worker-0:1\n"), 0o644))
	cmd := exec.Command(mpiexec, "-n", "1", "sh", "-c", "echo $BOTH $ONLY")
	cmd.Env = []string{
		"PATH=" + defaultPath, "BOTH=mpiexec",
		"HYDRA_LAUNCHER=ssh", "HYDRA_LAUNCHER_EXEC=" + agent, "HYDRA_HOST_FILE=" + hosts,
	}
	out, err := cmd.Output()
	require.NoError(t, err)
	require.Equal(t, "mpiexec session\n", string(out))
}

// TestRealOpenMPIWithoutDevices checks on a machine without verbs devices that two ranks talk, that they may use TCP,
// that Open MPI does not even open openib and UCX, and that it prints no warning.
func TestRealOpenMPIWithoutDevices(t *testing.T) {
	if _, err := os.Stat("/sys/class/infiniband"); err == nil {
		missing(t, "this machine has verbs devices")
	}
	mpirun, err := Look("mpirun.openmpi", []string{"PATH=" + defaultPath}, "")
	if err != nil {
		missing(t, err.Error())
	}
	run := func(more ...string) (stdout, stderr string) {
		fabric := Fabric{Kind: FabricTCP, NoPeerMemory: true, Why: "no rank has a verbs device"}
		vars := slices.Concat(openMPI4.Variables(Setup{Root: os.Geteuid() == 0}), fabric.Job())
		base := []string{"PATH=" + defaultPath, "HOME=" + t.TempDir(), "TMPDIR=/tmp"}
		environ, _ := Merge(append(base, more...), vars)
		cmd := exec.Command(mpirun, "-np", "2", "--oversubscribe", "/usr/bin/python3", "-c",
			"from mpi4py import MPI; c = MPI.COMM_WORLD; s = c.allreduce(c.rank + 1)\nif c.rank == 0: print(s)")
		cmd.Env = environ
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		require.NoError(t, cmd.Run(), errs.String())
		return out.String(), errs.String()
	}
	out, errs := run()
	require.Equal(t, "3\n", out)
	require.Empty(t, errs)
	_, errs = run("OMPI_MCA_btl_base_verbose=100", "OMPI_MCA_pml_base_verbose=100")
	require.Contains(t, errs, "select: init of component tcp returned success")
	require.NotContains(t, errs, "openib")
	require.NotContains(t, errs, "ucx")
}
