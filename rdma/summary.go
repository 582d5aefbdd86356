package rdma

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"net/netip"
	"slices"
	"strings"
)

// Summary is what the other ranks need to know about a host.
type Summary struct {
	Devices uint8  // the number of verbs devices, 255 for more
	Reason  Reason // why no port can be used, where there is a device
	Flags   Flags
	rails   [kinds]rails // the usable ports by Kind. The entry of KindNone is empty
	pkeys   []uint16     // of the usable InfiniBand ports, the lowest three. flagManyPKeys is set if there are more
	// subnets has one bit for each subnet prefix of the usable InfiniBand ports, chosen by a hash: two hosts without a
	// common bit have no common subnet.
	subnets uint32
	// ports is a hash over the GUIDs of devices with usable ports: the same in containers that share their devices.
	ports uint32
}

// Flags are single facts about a host.
type Flags uint16

// The flags. The numbers go over the network.
const (
	FlagOff           Flags = 1 << iota // the user turned RDMA off (--rdma off); everything else is zero
	FlagRequire                         // the user forbids a launch without RDMA
	flagIPv4                            // all usable RoCE ports have an IPv4 address
	flagIPv6                            // all usable RoCE ports have an IPv6 address
	flagGPUs                            // there are NVIDIA GPUs
	flagGPUDirect                       // a module lets NICs reach the memory of NVIDIA GPUs
	flagMemlock                         // locked memory is limited
	flagPeerMemory                      // processes may not read each other's memory
	flagManyPKeys                       // there are more partition keys than pkeys holds
	FlagNetworkDirect                   // see Report.NetworkDirect
)

// rails are the usable ports of one kind.
type rails struct {
	count    uint8  // the number of ports, 255 for more
	deciGbps uint16 // the rate of the slowest port in tenths of Gb/s, 0 if unknown
	names    uint16 // a hash over the names of the ports: hosts that name their devices differently have others
}

// Usable reports whether programs can use any port.
func (s Summary) Usable() bool { return s.Best() != KindNone }

// Best returns the best kind that has a usable port.
func (s Summary) Best() Kind {
	for k := KindInfiniBand; k < kinds; k++ {
		if s.rails[k].count > 0 {
			return k
		}
	}
	return KindNone
}

// Summary returns the summary of r.
func (r Report) Summary() Summary {
	s := Summary{Devices: uint8(min(len(r.Devices), math.MaxUint8))}
	flag := func(f Flags, set bool) {
		if set {
			s.Flags |= f
		}
	}
	flag(flagGPUs, r.GPUs > 0)
	flag(flagGPUDirect, r.GPUDirect != "")
	flag(flagPeerMemory, r.PeerMemory == "denied")
	flag(FlagNetworkDirect, r.NetworkDirect)
	flag(flagMemlock, len(r.Devices) > 0 && !r.Limits.unlimited())

	var reason Reason
	var keys []uint16
	var guids []string
	families := flagIPv4 | flagIPv6
	for i := range r.Devices {
		d := &r.Devices[i]
		if len(d.Ports) == 0 {
			reason = max(reason, cmp.Or(d.reasonOf(r.NetnsMode), reasonPort))
		}
		for j := range d.Ports {
			p := &d.Ports[j]
			if !p.Usable {
				reason = max(reason, p.reason)
				continue
			}
			s.rails[p.Fabric].add(p.RateGbps)
			guids = append(guids, d.NodeGUID)
			switch p.Fabric {
			case KindInfiniBand:
				s.addSubnet(p)
				for _, k := range p.PKeys {
					keys = append(keys, uint16(parseHex(k)))
				}
			case KindRoCE:
				families &= p.families()
			}
		}
	}
	if !s.Usable() {
		s.Reason = reason
	}
	flag(families, s.rails[KindRoCE].count > 0)
	slices.Sort(keys)
	keys = slices.Compact(keys)
	flag(flagManyPKeys, len(keys) > maxPKeys)
	s.pkeys = slices.Clip(keys[:min(len(keys), maxPKeys)])
	for k := range s.rails {
		if s.rails[k].count > 0 {
			s.rails[k].names = uint16(hash(r.Ports(Kind(k))))
		}
	}
	slices.Sort(guids)
	if guids = slices.Compact(guids); len(guids) > 0 {
		s.ports = hash(guids)
	}
	return s
}

// Ports returns the usable ports of kind k, such as "mlx5_0:1".
func (r Report) Ports(k Kind) []string {
	var names []string
	for i := range r.Devices {
		for _, p := range r.Devices[i].Ports {
			if p.Usable && p.Fabric == k {
				names = append(names, fmt.Sprintf("%s:%d", r.Devices[i].Name, p.Port))
			}
		}
	}
	return names
}

// addSubnet adds the subnet of a port, the upper half of its first GID.
func (s *Summary) addSubnet(p *Port) {
	if len(p.GIDs) > 0 && p.GIDs[0].Index == 0 {
		gid, _ := netip.ParseAddr(p.GIDs[0].GID)
		b := gid.As16()
		s.subnets |= 1 << (hash([]string{fmt.Sprintf("%x", b[:8])}) % 32)
	}
}

// families returns the address families by which a usable RoCE port can be reached.
func (p *Port) families() Flags {
	var f Flags
	for _, g := range p.GIDs {
		if g.routable() {
			f |= g.family()
		}
	}
	return f
}

func hash(words []string) uint32 {
	h := fnv.New32a()
	for _, w := range words {
		_, _ = h.Write([]byte(w + "\x00")) // documented never to fail
	}
	return h.Sum32()
}

func (r *rails) add(gbps float64) {
	rate := uint16(min(math.Round(gbps*10), math.MaxUint16))
	if r.count == 0 || rate < r.deciGbps {
		r.deciGbps = rate
	}
	if r.count < math.MaxUint8 {
		r.count++
	}
}

func (r rails) text(k Kind) string {
	if r.deciGbps == 0 {
		return fmt.Sprintf("%d x %s", r.count, k)
	}
	return fmt.Sprintf("%d x %s %g Gb/s", r.count, k, float64(r.deciGbps)/10)
}

// String returns the summary in a few words: "none", "2 x InfiniBand 400 Gb/s", "1 device, not usable: no device node".
func (s Summary) String() string {
	var parts []string
	for k, r := range s.rails {
		if r.count > 0 {
			parts = append(parts, r.text(Kind(k)))
		}
	}
	switch {
	case s.Flags&FlagOff != 0:
		return "off"
	case len(parts) > 0:
		return strings.Join(parts, ", ")
	case s.Flags&FlagNetworkDirect != 0:
		return "Azure Network Direct only"
	case s.Devices == 0:
		return "none"
	case s.Devices == 1:
		return "1 device, not usable: " + s.Reason.String()
	}
	return fmt.Sprintf("%d devices, not usable: %s", s.Devices, s.Reason)
}

// The encoding: version, devices, reason, flags (2 bytes), one bit for each kind that has rails, five bytes for each
// such kind and, if there is any, the hash of the ports; for InfiniBand also the subnets and the number of keys with
// two bytes each. Numbers are big endian. Later versions of paiinit may append; readers ignore what they do not know.
const (
	summaryVersion = 2
	maxSummary     = 64 // bytes of the longest encoding
	maxPKeys       = 3
)

// Encode returns s in at most maxSummary bytes.
func (s Summary) Encode() []byte {
	b := []byte{summaryVersion, s.Devices, byte(s.Reason)}
	b = binary.BigEndian.AppendUint16(b, uint16(s.Flags))
	present := len(b)
	b = append(b, 0)
	for k := KindInfiniBand; k < kinds; k++ {
		r := s.rails[k]
		if r.count == 0 {
			continue
		}
		b[present] |= 1 << k
		b = append(b, r.count)
		b = binary.BigEndian.AppendUint16(b, r.deciGbps)
		b = binary.BigEndian.AppendUint16(b, r.names)
	}
	if b[present] != 0 {
		b = binary.BigEndian.AppendUint32(b, s.ports)
	}
	if s.rails[KindInfiniBand].count > 0 {
		b = binary.BigEndian.AppendUint32(b, s.subnets)
		keys := s.pkeys[:min(len(s.pkeys), maxPKeys)]
		b = append(b, byte(len(keys)))
		for _, k := range keys {
			b = binary.BigEndian.AppendUint16(b, k)
		}
	}
	return b
}

// DecodeSummary reads what Encode returned.
func DecodeSummary(b []byte) (Summary, error) {
	fail := func(problem string, args ...any) (Summary, error) {
		return Summary{}, fmt.Errorf("decoding summary: "+problem, args...)
	}
	switch {
	case len(b) < 6 || len(b) > maxSummary:
		return fail("%d bytes, want 6 to %d", len(b), maxSummary)
	case b[0] != summaryVersion:
		return fail("version %d, want %d", b[0], summaryVersion)
	case b[2] >= byte(reasons):
		return fail("unknown reason")
	case b[5]&1 != 0 || b[5]>>kinds != 0:
		return fail("unknown kind of fabric")
	}
	s := Summary{Devices: b[1], Reason: Reason(b[2]), Flags: Flags(binary.BigEndian.Uint16(b[3:]))}
	rest, bad := b[6:], false
	number := func(size int) (n uint64) {
		bad = bad || len(rest) < size
		if bad {
			return 0
		}
		for _, c := range rest[:size] {
			n = n<<8 | uint64(c)
		}
		rest = rest[size:]
		return n
	}
	for k := KindInfiniBand; k < kinds; k++ {
		if b[5]&(1<<k) != 0 {
			s.rails[k] = rails{uint8(number(1)), uint16(number(2)), uint16(number(2))}
			bad = bad || s.rails[k].count == 0
		}
	}
	if b[5] != 0 {
		s.ports = uint32(number(4))
	}
	if s.rails[KindInfiniBand].count > 0 {
		s.subnets = uint32(number(4))
		n := number(1)
		for range min(n, maxPKeys) {
			s.pkeys = append(s.pkeys, uint16(number(2)))
		}
		bad = bad || n > maxPKeys
	}
	if bad {
		return fail("it ends early or a number is out of range")
	}
	return s, nil
}
