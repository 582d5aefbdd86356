package rdma

import (
	"fmt"
	"math/bits"
	"slices"
)

// Verdict is what all ranks of a job can use together.
type Verdict struct {
	Fabric Kind // that every rank can use, KindNone for TCP
	// Wanted is the better kind that most ranks can use where not all can, and Lacks names the other ranks.
	Wanted        Kind
	Lacks         []Lack
	Notes         []Lack // facts about ranks that do not prevent the use of Fabric
	NetworkDirect bool   // no kind fits, but every rank has Azure's Network Direct, for Intel MPI through DAPL only
	Off           bool   // a rank was told not to use RDMA and no rank requires it: launchers get no fabric variables
	Required      bool   // a rank was told not to run without RDMA
	Devices       bool   // a rank has a verbs device, whether or not it can be used
	GPUs          bool   // a rank has NVIDIA GPUs
	PeerMemory    bool   // processes may read each other's memory on every rank; unknown counts as yes
	SameNames     bool   // the ports of Fabric have the same names on every rank
}

// Lack is a problem of one rank.
type Lack struct {
	Rank int
	Why  string
}

// Judge compares the summaries of all ranks, in rank order. It depends on nothing else, so every rank gets the same
// verdict.
func Judge(ranks []Summary) Verdict {
	v := Verdict{PeerMemory: true}
	off, networkDirect := false, true
	for _, s := range ranks {
		off = off || s.Flags&FlagOff != 0
		v.Required = v.Required || s.Flags&FlagRequire != 0
		v.Devices = v.Devices || s.Devices > 0
		v.GPUs = v.GPUs || s.Flags&flagGPUs != 0
		v.PeerMemory = v.PeerMemory && s.Flags&flagPeerMemory == 0
		networkDirect = networkDirect && s.Flags&FlagNetworkDirect != 0
	}
	if off && !v.Required {
		v.Off = true
		return v
	}
	// Best first. A kind that no rank has cannot be wanted; iWARP and software RDMA, no better than TCP, must be
	// required.
	best := len(ranks) + 1
	for k := KindInfiniBand; k < kinds && v.Fabric == KindNone; k++ {
		lacks := lacking(ranks, k)
		switch {
		case !slices.ContainsFunc(ranks, func(s Summary) bool { return s.rails[k].count > 0 }):
		case len(lacks) == 0 && (k < KindIWARP || v.Required):
			v.Fabric = k
		case len(lacks) == 0 && v.Wanted == KindNone:
			v.Wanted = k
		case len(lacks) > 0 && len(lacks) < best:
			v.Wanted, v.Lacks, best = k, lacks, len(lacks)
		}
	}
	switch {
	case v.Fabric != KindNone:
		first := ranks[0].rails[v.Fabric].names
		v.SameNames = !slices.ContainsFunc(ranks, func(s Summary) bool { return s.rails[v.Fabric].names != first })
		v.Notes = notes(ranks, v.Fabric)
	case networkDirect:
		v.NetworkDirect, v.Wanted, v.Lacks = true, KindNone, nil
	case v.Wanted == KindNone: // no rank has a usable port
		for i, s := range ranks {
			if v.Required || s.Devices > 0 || s.Flags&FlagNetworkDirect != 0 {
				v.Lacks = append(v.Lacks, Lack{i, why(s, KindNone)})
			}
		}
	}
	return v
}

// JudgeEncoded judges encoded summaries. A summary that cannot be decoded counts as a rank without devices: the caller
// has compared the versions before.
func JudgeEncoded(encoded [][]byte) Verdict {
	ranks := make([]Summary, len(encoded))
	for i, b := range encoded {
		ranks[i], _ = DecodeSummary(b)
	}
	return Judge(ranks)
}

// RDMA says whether a library can use more than TCP on all ranks.
func (v Verdict) RDMA() bool { return v.Fabric != KindNone || v.NetworkDirect }

// String returns the verdict in a few words, without the ranks: "InfiniBand on all ranks", "TCP: not every rank has
// RoCE".
func (v Verdict) String() string {
	switch {
	case v.Off:
		return "left to the launcher"
	case v.Fabric != KindNone && v.Wanted != KindNone:
		return fmt.Sprintf("%s on all ranks; not every rank has %s", v.Fabric, v.Wanted)
	case v.Fabric != KindNone:
		return v.Fabric.String() + " on all ranks"
	case v.NetworkDirect:
		return "Azure Network Direct on all ranks, for Intel MPI only"
	case v.Wanted != KindNone && len(v.Lacks) == 0:
		return fmt.Sprintf("TCP: %s is no faster and is used only if RDMA is required", v.Wanted)
	case v.Wanted != KindNone:
		return fmt.Sprintf("TCP: not every rank can use %s", v.Wanted)
	case v.Devices:
		return "TCP: no rank can use its devices"
	}
	return "TCP: no rank has a verbs device"
}

// why says why a rank cannot use a kind of fabric.
func why(s Summary, k Kind) string {
	switch other := s.Best(); {
	case s.Flags&FlagOff != 0:
		return "told not to use RDMA"
	case other != KindNone && k != KindNone:
		return "has " + other.String() + " only"
	case s.Reason != reasonNone:
		return s.Reason.String()
	case s.Flags&FlagNetworkDirect != 0:
		return "Azure Network Direct only"
	}
	return "no verbs device"
}

// lacking returns the ranks that cannot use a fabric of kind k together with the others.
func lacking(ranks []Summary, k Kind) []Lack {
	var lacks []Lack
	for i, s := range ranks {
		if s.rails[k].count == 0 {
			lacks = append(lacks, Lack{i, why(s, k)})
		}
	}
	if len(lacks) > 0 {
		return lacks
	}
	switch k {
	case KindInfiniBand:
		if lacks = outliers(ranks, "another InfiniBand subnet",
			func(s Summary) []int { return setBits(s.subnets) }); lacks == nil {
			lacks = otherPartition(ranks)
		}
	case KindRoCE:
		lacks = outliers(ranks, "RoCE addresses of another family",
			func(s Summary) []int { return setBits(uint32(s.Flags & (flagIPv4 | flagIPv6))) })
	}
	return lacks
}

// outliers returns the ranks without the most common property, the lowest of equally common ones. It returns nil if all
// ranks share one. A rank whose properties are unknown counts as having all.
func outliers(ranks []Summary, why string, properties func(Summary) []int) []Lack {
	count := make(map[int]int)
	known := 0
	for _, s := range ranks {
		p := properties(s)
		if len(p) > 0 {
			known++
		}
		for _, x := range p {
			count[x]++
		}
	}
	common, most := 0, 0
	for x, n := range count {
		if n > most || n == most && x < common {
			common, most = x, n
		}
	}
	if most == known {
		return nil
	}
	var lacks []Lack
	for i, s := range ranks {
		if p := properties(s); len(p) > 0 && !slices.Contains(p, common) {
			lacks = append(lacks, Lack{i, why})
		}
	}
	return lacks
}

func setBits(n uint32) []int {
	var set []int
	for ; n != 0; n &= n - 1 {
		set = append(set, bits.TrailingZeros32(n))
	}
	return set
}

// fullMember is the bit of a partition key that makes its holder a full member. Two limited members cannot reach each
// other (InfiniBand architecture 10.9.3, and UCX's ib_iface.c).
const fullMember = 0x8000

// otherPartition returns the ranks that share no partition key with the others.
func otherPartition(ranks []Summary) []Lack {
	lacks := outliers(ranks, "no partition key in common", func(s Summary) []int {
		var keys []int
		if s.Flags&flagManyPKeys == 0 {
			for _, k := range s.pkeys {
				keys = append(keys, int(k&^fullMember))
			}
		}
		return keys
	})
	if lacks != nil {
		return lacks
	}
	// A common key helps only if at most one rank is a limited member.
	unknown := func(s Summary) bool { return len(s.pkeys) == 0 || s.Flags&flagManyPKeys != 0 }
	if slices.ContainsFunc(ranks, unknown) {
		return nil
	}
	var fewest []int
	for _, k := range ranks[0].pkeys {
		k &^= fullMember
		common := true
		var limited []int
		for i, s := range ranks {
			if !slices.Contains(s.pkeys, k|fullMember) {
				common = common && slices.Contains(s.pkeys, k)
				limited = append(limited, i)
			}
		}
		switch {
		case common && len(limited) <= 1:
			return nil
		case common && (fewest == nil || len(limited) < len(fewest)):
			fewest = limited
		}
	}
	for _, i := range fewest {
		lacks = append(lacks, Lack{i, "limited member of its partition"})
	}
	return lacks
}

// notes returns what does not prevent the use of fabric k, but makes it slow or surprising.
func notes(ranks []Summary, k Kind) []Lack {
	var notes []Lack
	note := func(rank int, format string, args ...any) {
		notes = append(notes, Lack{rank, fmt.Sprintf(format, args...)})
	}
	var most rails
	gdr := false
	for _, s := range ranks {
		r := s.rails[k]
		most.count, most.deciGbps = max(most.count, r.count), max(most.deciGbps, r.deciGbps)
		gdr = gdr || s.Flags&flagGPUDirect != 0
	}
	host := make(map[uint32]int)
	for i, s := range ranks {
		r := s.rails[k]
		if r.count < most.count {
			note(i, "%d of %d rails", r.count, most.count)
		}
		if r.deciGbps > 0 && r.deciGbps < most.deciGbps {
			note(i, "%g Gb/s, others %g", float64(r.deciGbps)/10, float64(most.deciGbps)/10)
		}
		if s.Flags&flagMemlock != 0 {
			note(i, "locked memory is limited")
		}
		if gdr && s.Flags&flagGPUs != 0 && s.Flags&flagGPUDirect == 0 {
			note(i, "no GPUDirect, unlike others")
		}
		if other, shared := host[s.ports]; shared && s.ports != 0 {
			note(i, "shares its devices with rank %d", other)
		} else {
			host[s.ports] = i
		}
	}
	return notes
}
