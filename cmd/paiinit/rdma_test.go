package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/rdma"
	"github.com/paiinit/paiinit/rendezvous"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".golden")
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// captured unpacks a fixture of package rdma: the files of another container.
func captured(t *testing.T, name string) string {
	t.Helper()
	a, err := txtar.ParseFile(filepath.Join("../../rdma/testdata", name+".txtar"))
	require.NoError(t, err)
	root := t.TempDir()
	for _, f := range a.Files {
		file := filepath.Join(root, f.Name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		if target, link := strings.CutPrefix(strings.TrimSpace(string(f.Data)), "-> "); link {
			require.NoError(t, os.Symlink(target, file))
			continue
		}
		require.NoError(t, os.WriteFile(file, f.Data, 0o644))
	}
	return root
}

func TestRDMATable(t *testing.T) {
	for _, name := range []string{"mixed-node", "azure-hb-b", "network-direct", "none"} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			require.NoError(t, showRDMA(&out, rdma.Probe(rdma.At(captured(t, name))), false))
			golden(t, "rdma-"+name, out.String())
		})
	}
}

func TestRDMAUnusable(t *testing.T) {
	root := captured(t, "mlx5-vf")
	require.NoError(t, os.MkdirAll(filepath.Join(root, "proc/self"), 0o755))
	limits := []byte("Max locked memory         65536                65536                bytes\n")
	require.NoError(t, os.WriteFile(filepath.Join(root, "proc/self/limits"), limits, 0o644))
	var out bytes.Buffer
	probed := rdma.Probe(rdma.At(root))
	err := showRDMA(&out, probed, true)
	require.EqualError(t, err, "no verbs device can be used: 1 device, not usable: memlock too low")
	require.Equal(t, statusUnmendable, statusOf(err))
	var report rdma.Answer
	require.NoError(t, json.Unmarshal(out.Bytes(), &report))
	s, err := rdma.DecodeSummary(report.Record)
	require.NoError(t, err)
	require.Equal(t, report.Summary, s.String())
	require.Equal(t, "ob1", report.Variables["OMPI_MCA_pml"])
	// Intel MPI can use Network Direct.
	probed.NetworkDirect = true
	require.NoError(t, showRDMA(&out, probed, true))
}

func TestFabricTable(t *testing.T) {
	var ranks []rdma.RankReport
	var summaries []rdma.Summary
	var names []string
	for i, name := range []string{"azure-hb-a", "azure-hb-b", "azure-hb-a", "cgroup", ""} {
		r := rdma.RankReport{Rank: i, Name: "node-" + string(rune('a'+i))}
		r.Error = "paiinit rdma ended there with status 255"
		if name != "" {
			c := rdma.At(captured(t, name))
			if name == "cgroup" {
				c.Limits = rdma.Limits{Memlock: 65536}
			}
			report := rdma.Probe(c)
			answer := report.Answer(nil)
			r.Report, r.Summary, r.Error = &answer, report.Summary(), ""
		}
		ranks, summaries, names = append(ranks, r), append(summaries, r.Summary), append(names, r.Name)
	}
	v := rdma.Judge(summaries)
	var out bytes.Buffer
	lacks, notes := foldLacks(names, v.Lacks), foldLacks(names, v.Notes)
	require.NoError(t, rdma.WriteJobTable(&out, ranks, v.String(), lacks, notes))
	golden(t, "rdma-all", out.String())
}

func TestCheckFabric(t *testing.T) {
	none := rdma.Summary{}
	refused := rdma.Summary{Devices: 1, Reason: rdma.ReasonMemlock}
	direct := rdma.Summary{Flags: rdma.FlagNetworkDirect}
	required := rdma.Summary{Flags: rdma.FlagNetworkDirect | rdma.FlagRequire}
	require1 := rdma.Summary{Flags: rdma.FlagRequire}
	asked := []string{"paiAzRDMA"}
	const all, insist = "paiinit rdma --all", "--rdma require"
	for name, tt := range map[string]struct {
		signs   []string
		ranks   []rdma.Summary
		refuses bool
		warns   bool
		hints   []string
	}{
		"nothing asked for, nothing there": {nil, []rdma.Summary{none, none}, false, false, nil},
		"devices that cannot be used":      {nil, []rdma.Summary{refused, none}, false, true, []string{all}},
		"paiAzRDMA=true, no device":        {asked, []rdma.Summary{none, none}, false, true, []string{insist}},
		"paiAzRDMA=true, refused devices": {
			asked, []rdma.Summary{refused, refused}, false, true, []string{all, insist},
		},
		"paiAzRDMA=true, one rank without": {asked, []rdma.Summary{direct, none}, false, true, []string{insist}},
		"only what OpenPAI mounts": {
			[]string{"/var/lib/hyperv"}, []rdma.Summary{none, none}, false, false, nil,
		},
		"paiAzRDMA=true, left to the user": {asked, []rdma.Summary{none, {Flags: rdma.FlagOff}}, false, false, nil},
		"Network Direct on all":            {asked, []rdma.Summary{direct, direct}, false, false, nil},
		"Network Direct on all, required":  {asked, []rdma.Summary{required, direct}, false, false, nil},
		"Network Direct on one, required":  {asked, []rdma.Summary{required, none}, true, false, nil},
		"no device, required":              {nil, []rdma.Summary{require1, none}, true, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			c := &container{identity: identity{log: slog.New(slog.NewTextHandler(&log, nil))}}
			c.job.AzureRDMA = tt.signs
			var r rendezvous.Roster
			for _, s := range tt.ranks {
				m := rendezvous.Member{Alias: "worker"}
				m.Fabric = s.Encode()
				r.Members = append(r.Members, m)
			}
			o := c.checkFabric(r)
			require.Equal(t, tt.refuses, o != nil)
			require.Equal(t, tt.warns, strings.Contains(log.String(), "level=WARN msg=fabric"), log.String())
			for _, hint := range []string{all, insist} {
				require.Equal(t, slices.Contains(tt.hints, hint), strings.Contains(log.String(), hint), log.String())
			}
		})
	}
}

// With Network Direct on all ranks Intel MPI gets its variables. The job's own values take precedence.
func TestNetworkDirectVariables(t *testing.T) {
	root := captured(t, "network-direct")
	report := rdma.Probe(rdma.At(root))
	vars := fabricOf(rdma.Judge([]rdma.Summary{report.Summary(), report.Summary()}), report).Vars()
	environ, _ := launch.Merge([]string{"I_MPI_FABRICS=shm:tcp"}, vars)
	require.Equal(t, "shm:tcp", launch.Value(environ, "I_MPI_FABRICS"))
	require.Equal(t, "ofa-v2-ib0", launch.Value(environ, "I_MPI_DAPL_PROVIDER"))
	require.Equal(t, "0", launch.Value(environ, "I_MPI_DYNAMIC_CONNECTION"))
	require.Equal(t, "ob1", launch.Value(environ, "OMPI_MCA_pml"))
	none := rdma.Judge([]rdma.Summary{report.Summary(), {}})
	environ, _ = launch.Merge(nil, fabricOf(none, report).Vars())
	require.Empty(t, launch.Value(environ, "I_MPI_FABRICS"))
}

func TestFabricOf(t *testing.T) {
	report := rdma.Probe(rdma.At(captured(t, "mixed-node")))
	for want, v := range map[string]rdma.Verdict{
		launch.FabricVerbs: {Fabric: rdma.KindRoCE},
		launch.FabricEFA:   {Fabric: rdma.KindEFA},
		launch.FabricTCP:   {},
		"":                 {Fabric: rdma.KindOmniPath},
	} {
		f := fabricOf(v, report)
		require.Equal(t, want, f.Kind)
		if want == launch.FabricVerbs {
			require.Equal(t, []string{"mlx5_1:1"}, f.Ports)
		}
		require.True(t, f.NoPeerMemory)
	}
	off := fabricOf(rdma.Verdict{Off: true, Devices: true}, report)
	require.Empty(t, append(off.Job(), off.Own()...))
}
