package rdma

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// ranksOf probes one fixture for each rank.
func ranksOf(t testing.TB, names ...string) []Summary {
	var ranks []Summary
	for _, name := range names {
		f := load(t, "testdata/"+name+".txtar")
		ranks = append(ranks, Probe(f.config()).Summary())
	}
	return ranks
}

func lackText(lacks []Lack) (texts []string) {
	for _, l := range lacks {
		texts = append(texts, fmt.Sprintf("%d: %s", l.Rank, l.Why))
	}
	return texts
}

// The verdicts that jobs on the captured machines get.
func TestVerdictOfFixtures(t *testing.T) {
	for name, tt := range map[string]struct {
		ranks []string
		want  string
		lacks []string
		notes []string
		names bool // the same on all ranks
	}{
		"nothing anywhere": {ranks: []string{"none", "none"}, want: "TCP: no rank has a verbs device"},
		"one rank":         {ranks: []string{"mlx5-ndr"}, want: "InfiniBand on all ranks", names: true},
		"two equal": {
			ranks: []string{"mlx5-ndr", "mlx5-ndr"}, want: "InfiniBand on all ranks",
			notes: []string{"1: shares its devices with rank 0"}, names: true,
		},
		"Azure, swapped names": {ranks: []string{"azure-hb-a", "azure-hb-b"}, want: "InfiniBand on all ranks"},
		"Azure and another tenant": {
			ranks: []string{"azure-hb-a", "azure-hb-b", "mlx5-ndr"}, want: "TCP: not every rank can use InfiniBand",
			lacks: []string{"0: limited member of its partition", "1: limited member of its partition"},
		},
		"one without": {
			ranks: []string{"mlx5-ndr", "none", "mlx5-ndr"}, want: "TCP: not every rank can use InfiniBand",
			lacks: []string{"1: no verbs device"},
		},
		"one with a refused node": {
			ranks: []string{"mlx5-ndr", "cgroup"}, want: "TCP: not every rank can use InfiniBand",
			lacks: []string{"1: device not permitted"},
		},
		"one in another namespace": {
			ranks: []string{"mlx5-ndr", "stale-sys"}, want: "TCP: not every rank can use InfiniBand",
			lacks: []string{"1: device in another network namespace"},
		},
		"all refused": {
			ranks: []string{"cgroup", "nodes-refused"}, want: "TCP: no rank can use its devices",
			lacks: []string{"0: device not permitted", "1: device cannot be opened"},
		},
		"fewer and slower rails": {
			ranks: []string{"mlx5-ndr", "hdr-dead-port"}, want: "InfiniBand on all ranks",
			notes: []string{"1: 1 of 2 rails", "1: 200 Gb/s, others 400"},
		},
		"pods with sparse tables": {
			ranks: []string{"roce-pod-sparse", "roce-pod-other"}, want: "RoCE on all ranks",
		},
		"bond and pod": {
			ranks: []string{"roce-bond", "roce-pod-other"}, want: "RoCE on all ranks",
			notes: []string{"1: 100 Gb/s, others 200"},
		},
		"InfiniBand against RoCE": {
			ranks: []string{"mlx5-ndr", "mlx5-ndr", "roce-bond"}, want: "TCP: not every rank can use InfiniBand",
			lacks: []string{"2: has RoCE only"}, notes: nil,
		},
		"mixed node against RoCE": {
			ranks: []string{"mixed-node", "roce-bond"}, want: "RoCE on all ranks; not every rank has InfiniBand",
			lacks: []string{"1: has RoCE only"}, notes: []string{"0: 100 Gb/s, others 200"},
		},
		"mixed node against InfiniBand": {
			ranks: []string{"mixed-node", "mlx5-ndr"}, want: "InfiniBand on all ranks",
			notes: []string{"1: 2 of 9 rails"},
		},
		"EFA": {
			ranks: []string{"efa", "efa"}, want: "EFA on all ranks",
			notes: []string{"1: shares its devices with rank 0"}, names: true,
		},
		"Omni-Path and ConnectX-3": {
			ranks: []string{"mlx4-hfi1", "mlx4-hfi1"}, want: "InfiniBand on all ranks",
			notes: []string{
				"0: locked memory is limited", "1: locked memory is limited", "1: shares its devices with rank 0",
			},
			names: true,
		},
		"software against nothing": {
			ranks: []string{"rxe-unlimited", "none"}, want: "TCP: not every rank can use software RDMA",
			lacks: []string{"1: no verbs device"},
		},
		"software": {
			ranks: []string{"rxe-unlimited", "rxe-unlimited"},
			want:  "TCP: software RDMA is no faster and is used only if RDMA is required",
		},
		"software, memlock": {
			ranks: []string{"rxe", "rxe"}, want: "TCP: no rank can use its devices",
			lacks: []string{"0: memlock too low", "1: memlock too low"},
		},
		"iWARP": {
			ranks: []string{"iwarp", "iwarp"}, want: "TCP: iWARP is no faster and is used only if RDMA is required",
		},
		"Network Direct": {
			ranks: []string{"network-direct", "none"}, want: "TCP: no rank has a verbs device",
			lacks: []string{"0: Azure Network Direct only"},
		},
		"Network Direct on all": {
			ranks: []string{"network-direct", "network-direct"},
			want:  "Azure Network Direct on all ranks, for Intel MPI only",
		},
		"Network Direct and RoCE": {
			ranks: []string{"network-direct", "roce-bond"},
			want:  "TCP: not every rank can use RoCE",
			lacks: []string{"0: Azure Network Direct only"},
		},
		"broken beside good": {ranks: []string{"broken", "mlx5-ndr"}, want: "InfiniBand on all ranks",
			notes: []string{"0: 1 of 2 rails"}},
	} {
		t.Run(name, func(t *testing.T) {
			ranks := ranksOf(t, tt.ranks...)
			v := Judge(ranks)
			require.Equal(t, tt.want, v.String())
			require.Equal(t, tt.lacks, lackText(v.Lacks))
			require.Equal(t, tt.notes, lackText(v.Notes))
			require.Equal(t, tt.names, v.SameNames)
			require.False(t, v.Required)
		})
	}
}

func TestVerdictRequired(t *testing.T) {
	for name, tt := range map[string]struct {
		ranks []string
		want  Kind
		lacks []string
	}{
		"all":      {ranks: []string{"mlx5-ndr", "mlx5-ndr"}, want: KindInfiniBand},
		"one less": {ranks: []string{"mlx5-ndr", "none"}, lacks: []string{"1: no verbs device"}},
		"software": {ranks: []string{"rxe-unlimited", "rxe-unlimited"}, want: KindSoftware},
		"iWARP":    {ranks: []string{"iwarp", "iwarp"}, want: KindIWARP},
		"no rank": {
			ranks: []string{"none", "cgroup"}, lacks: []string{"0: no verbs device", "1: device not permitted"},
		},
		"nothing": {ranks: []string{"none", "none"}, lacks: []string{"0: no verbs device", "1: no verbs device"}},
	} {
		t.Run(name, func(t *testing.T) {
			ranks := ranksOf(t, tt.ranks...)
			ranks[0].Flags |= FlagRequire
			v := Judge(ranks)
			require.True(t, v.Required)
			require.Equal(t, tt.want, v.Fabric)
			require.Equal(t, tt.lacks, lackText(v.Lacks))
		})
	}
}

func TestVerdictNetworkDirect(t *testing.T) {
	direct := Summary{Flags: FlagNetworkDirect}
	unusable := Summary{Devices: 1, Reason: reasonPort, Flags: FlagNetworkDirect}
	software := direct
	software.rails[KindSoftware] = rails{1, 100, 1}
	required := Summary{Flags: FlagNetworkDirect | FlagRequire}
	for name, tt := range map[string]struct {
		ranks []Summary
		want  bool
		rdma  bool
		lacks []string
	}{
		"all":                     {ranks: []Summary{direct, unusable}, want: true, rdma: true},
		"all, required":           {ranks: []Summary{required, direct}, want: true, rdma: true},
		"one has software RDMA":   {ranks: []Summary{direct, software}, want: true, rdma: true},
		"all have something else": {ranks: []Summary{infiniBand(nil, 0), infiniBand(nil, 0)}, rdma: true},
		"one without":             {ranks: []Summary{direct, {}}, lacks: []string{"0: Azure Network Direct only"}},
		"one without, required": {
			ranks: []Summary{required, {}},
			lacks: []string{"0: Azure Network Direct only", "1: no verbs device"},
		},
		"one told not to": {
			ranks: []Summary{required, {Flags: FlagOff}},
			lacks: []string{"0: Azure Network Direct only", "1: told not to use RDMA"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := Judge(tt.ranks)
			require.Equal(t, tt.want, v.NetworkDirect)
			require.Equal(t, tt.rdma, v.RDMA())
			require.Equal(t, tt.lacks, lackText(v.Lacks))
		})
	}
}

func TestVerdictOff(t *testing.T) {
	ranks := ranksOf(t, "mlx5-ndr", "none")
	ranks[1] = Summary{Flags: FlagOff}
	v := Judge(ranks)
	require.True(t, v.Off)
	require.Equal(t, "left to the launcher", v.String())
	ranks[0].Flags |= FlagRequire
	v = Judge(ranks)
	require.False(t, v.Off)
	require.Equal(t, []string{"1: told not to use RDMA"}, lackText(v.Lacks))
}

func infiniBand(keys []uint16, subnets uint32) Summary {
	s := Summary{Devices: 1, pkeys: keys, subnets: subnets}
	s.rails[KindInfiniBand] = rails{1, 4000, 1}
	return s
}

func TestPartitionsAndSubnets(t *testing.T) {
	full, limited, other := []uint16{0xffff}, []uint16{0x7fff}, []uint16{0x8003}
	for name, tt := range map[string]struct {
		ranks []Summary
		lacks []string
	}{
		"one limited member": {ranks: []Summary{infiniBand(full, 1), infiniBand(limited, 1), infiniBand(full, 1)}},
		"two limited members": {
			ranks: []Summary{infiniBand(full, 1), infiniBand(limited, 1), infiniBand(limited, 1)},
			lacks: []string{"1: limited member of its partition", "2: limited member of its partition"},
		},
		"another key": {
			ranks: []Summary{infiniBand(full, 1), infiniBand(other, 1), infiniBand(full, 1)},
			lacks: []string{"1: no partition key in common"},
		},
		"Azure's two": {
			ranks: []Summary{infiniBand([]uint16{0x7fff, 0x8003}, 1), infiniBand([]uint16{0x7fff, 0x8003}, 1)},
		},
		"too many to tell": {
			ranks: []Summary{
				infiniBand(full, 1),
				{
					Devices: 1, Flags: flagManyPKeys, pkeys: []uint16{1, 2, 3}, subnets: 1,
					rails: infiniBand(nil, 0).rails,
				},
			},
		},
		"unknown keys": {ranks: []Summary{infiniBand(full, 1), infiniBand(nil, 1)}},
		"another subnet": {
			ranks: []Summary{infiniBand(full, 1), infiniBand(full, 2), infiniBand(full, 1)},
			lacks: []string{"1: another InfiniBand subnet"},
		},
		"a subnet in common": {ranks: []Summary{infiniBand(full, 3), infiniBand(full, 2)}},
		"unknown subnet":     {ranks: []Summary{infiniBand(full, 3), infiniBand(full, 0)}},
		"half and half": {
			ranks: []Summary{infiniBand(full, 1), infiniBand(full, 2)}, lacks: []string{"1: another InfiniBand subnet"},
		},
		"subnet first, then key": {
			ranks: []Summary{infiniBand(full, 1), infiniBand(other, 2)},
			lacks: []string{"1: another InfiniBand subnet"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := Judge(tt.ranks)
			require.Equal(t, tt.lacks, lackText(v.Lacks))
			require.Equal(t, tt.lacks == nil, v.Fabric == KindInfiniBand)
		})
	}
}

func TestFamiliesOfRoCE(t *testing.T) {
	roce := func(f Flags) Summary {
		s := Summary{Devices: 1, Flags: f}
		s.rails[KindRoCE] = rails{1, 1000, 1}
		return s
	}
	require.Equal(t, KindRoCE, Judge([]Summary{roce(flagIPv4), roce(flagIPv4 | flagIPv6)}).Fabric)
	require.Equal(t, KindRoCE, Judge([]Summary{roce(flagIPv6), roce(flagIPv6)}).Fabric)
	v := Judge([]Summary{roce(flagIPv4), roce(flagIPv6)})
	require.Equal(t, KindNone, v.Fabric)
	require.Equal(t, []string{"1: RoCE addresses of another family"}, lackText(v.Lacks))
}

func TestPeerMemoryOfAll(t *testing.T) {
	require.True(t, Judge(make([]Summary, 3)).PeerMemory)
	require.False(t, Judge([]Summary{{}, {Flags: flagPeerMemory}, {}}).PeerMemory)
}

// Whatever the summaries are, a fabric is chosen only if every rank has it. Otherwise a reason names a rank, unless no
// rank has a usable device.
func TestVerdictProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(t, "ranks")
		var ranks []Summary
		for range n {
			s := Summary{
				Devices: rapid.Byte().Draw(t, "devices"),
				Flags:   Flags(rapid.Uint16().Draw(t, "flags")) &^ (FlagOff | FlagRequire),
				subnets: rapid.Uint32().Draw(t, "subnets"),
			}
			for k := KindInfiniBand; k < kinds; k++ {
				s.rails[k] = rails{
					rapid.Byte().Draw(t, "count") % 3,
					rapid.Uint16().Draw(t, "rate"),
					rapid.Uint16().Draw(t, "names"),
				}
			}
			s.pkeys = rapid.SliceOfN(rapid.Uint16(), 0, maxPKeys).Draw(t, "keys")
			s.Reason = Reason(rapid.IntRange(0, int(reasons)-1).Draw(t, "reason"))
			ranks = append(ranks, s)
		}
		v := Judge(ranks)
		_ = v.String()
		usable := slices.ContainsFunc(ranks, Summary.Usable)
		for _, s := range ranks {
			if v.Fabric != KindNone && s.rails[v.Fabric].count == 0 {
				t.Fatalf("%v, and a rank without it", v.Fabric)
			}
		}
		if !v.RDMA() && usable && len(v.Lacks) == 0 && v.Wanted < KindIWARP {
			t.Fatalf("TCP without a reason: %+v", v)
		}
		for _, l := range append(v.Lacks, v.Notes...) {
			if l.Rank < 0 || l.Rank >= n || l.Why == "" {
				t.Fatalf("bad lack %+v", l)
			}
		}
	})
}
