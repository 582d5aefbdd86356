package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
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

// captured lays out a fixture of package rdma as a captured container.
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
			require.NoError(t, showRDMA(&out, rdma.Probe(rdmaConfig(captured(t, name))), false))
			golden(t, "rdma-"+name, out.String())
		})
	}
}

func TestRDMAUnusable(t *testing.T) {
	root := captured(t, "mlx5-vf")
	require.NoError(t, os.MkdirAll(filepath.Join(root, "proc/self"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(root, "proc/self/limits"), []byte("Max locked memory         65536                65536                bytes\n"), 0o644))
	var out bytes.Buffer
	err := showRDMA(&out, rdma.Probe(rdmaConfig(root)), true)
	require.EqualError(t, err, "no verbs device can be used: 1 device, not usable: memlock too low")
	require.Equal(t, statusUnmendable, statusOf(err))
	var report reportJSON
	require.NoError(t, json.Unmarshal(out.Bytes(), &report))
	s, err := rdma.DecodeSummary(report.Record)
	require.NoError(t, err)
	require.Equal(t, report.Summary, s.String())
	require.Equal(t, "ob1", report.Variables["OMPI_MCA_pml"])
}

func TestFabricTable(t *testing.T) {
	var answer fabricJSON
	var summaries []rdma.Summary
	for i, name := range []string{"azure-hb-a", "azure-hb-b", "azure-hb-a", "cgroup", ""} {
		r := rankRDMA{Rank: i, Name: "node-" + string(rune('a'+i)), Error: "paiinit rdma ended there with status 255"}
		var s rdma.Summary
		if name != "" {
			c := rdmaConfig(captured(t, name))
			if name == "cgroup" {
				c.Limits = rdma.Limits{Memlock: 65536}
			}
			report := rdma.Probe(c)
			s = report.Summary()
			r.Report, r.Error = &reportJSON{Report: report}, ""
		}
		answer.Ranks, summaries = append(answer.Ranks, r), append(summaries, s)
	}
	v := rdma.Judge(summaries)
	answer.Verdict = v.String()
	var roster rendezvous.Roster
	for _, r := range answer.Ranks {
		roster.Members = append(roster.Members, rendezvous.Member{Alias: r.Name})
	}
	answer.Lacks, answer.Notes = foldLacks(roster, v.Lacks), foldLacks(roster, v.Notes)
	var out bytes.Buffer
	require.NoError(t, tableFabric(&out, answer, summaries))
	golden(t, "rdma-all", out.String())
}

func TestMarkOdd(t *testing.T) {
	rows := [][]string{{"0", "a", "x"}, {"1", "b", "x"}, {"2", "b"}, {"3", "b", "y", "z"}}
	require.True(t, markOdd(rows, 1))
	require.Equal(t, [][]string{{"0", "a *", "x"}, {"1", "b", "x"}, {"2", "b"}, {"3", "b", "y *", "z"}}, rows)
	require.False(t, markOdd([][]string{{"0", "a"}}, 1))
	require.False(t, markOdd(nil, 1))
}

func TestFabricOf(t *testing.T) {
	report := rdma.Probe(rdmaConfig(captured(t, "mixed-node")))
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
