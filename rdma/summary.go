package rdma

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Summary is what the other ranks need to know about a host.
type Summary struct {
	// Devices is the number of verbs devices, 255 for more.
	Devices uint8
	// Reason says why no port can be used, where there is a device.
	Reason Reason
	Flags  Flags
	// rails are the usable ports by Kind. The entry of KindNone is empty.
	rails [kinds]rails
	// pkeys are the partition keys of the usable InfiniBand ports, the first three in ascending order. If there are
	// more, flagManyPKeys is set.
	pkeys []uint16
	// subnets has one bit for each subnet prefix of the usable InfiniBand ports, chosen by a hash: two hosts without a
	// common bit have no common subnet.
	subnets uint32
	// ports is a hash over the GUIDs of the devices with usable ports. Containers that share their devices have the
	// same.
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
	// count is the number of ports, 255 for more.
	count uint8
	// deciGbps is the rate of the slowest port in tenths of Gb/s, 0 if unknown.
	deciGbps uint16
	// names is a hash over the names of the ports. It differs between hosts that name their devices differently.
	names uint16
}

const maxPKeys = 3

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
	names := make(map[Kind][]string)
	families := flagIPv4 | flagIPv6
	for i := range r.Devices {
		d := &r.Devices[i]
		if len(d.Ports) == 0 {
			why := d.reasonOf(r.NetnsMode)
			if why == reasonNone {
				why = reasonPort
			}
			reason = max(reason, why)
		}
		for j := range d.Ports {
			p := &d.Ports[j]
			if !p.Usable {
				reason = max(reason, p.reason)
				continue
			}
			s.rails[p.Fabric].add(p.RateGbps)
			names[p.Fabric] = append(names[p.Fabric], fmt.Sprintf("%s:%d", d.Name, p.Port))
			guids = append(guids, d.NodeGUID)
			switch p.Fabric {
			case KindInfiniBand:
				s.addSubnets(p)
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
	if s.rails[KindRoCE].count > 0 {
		s.Flags |= families
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)
	flag(flagManyPKeys, len(keys) > maxPKeys)
	s.pkeys = slices.Clip(keys[:min(len(keys), maxPKeys)])
	for k, n := range names {
		s.rails[k].names = uint16(hash(n))
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

// addSubnets adds the subnet of a port, the upper half of its first GID.
func (s *Summary) addSubnets(p *Port) {
	for _, g := range p.GIDs {
		if g.Index == 0 {
			s.subnets |= 1 << (hash([]string{subnetPrefix(g)}) % 32)
		}
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
	text := fmt.Sprintf("%d x %s", r.count, k)
	if r.deciGbps > 0 {
		text += " " + strconv.FormatFloat(float64(r.deciGbps)/10, 'f', -1, 64) + " Gb/s"
	}
	return text
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
	// maxSummary is the length of the longest encoding in bytes.
	maxSummary = 64
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
	fail := func(err error) (Summary, error) { return Summary{}, fmt.Errorf("rdma: decoding summary: %w", err) }
	switch {
	case len(b) < 6 || len(b) > maxSummary:
		return fail(fmt.Errorf("%d bytes, want 6 to %d", len(b), maxSummary))
	case b[0] != summaryVersion:
		return fail(fmt.Errorf("version %d, want %d", b[0], summaryVersion))
	case b[2] >= byte(reasons):
		return fail(errors.New("unknown reason"))
	case b[5]&1 != 0 || b[5]>>kinds != 0:
		return fail(errors.New("unknown kind of fabric"))
	}
	s := Summary{Devices: b[1], Reason: Reason(b[2]), Flags: Flags(binary.BigEndian.Uint16(b[3:]))}
	in := reader{b: b[6:]}
	for k := KindInfiniBand; k < kinds; k++ {
		if b[5]&(1<<k) != 0 {
			s.rails[k] = rails{uint8(in.number(1)), uint16(in.number(2)), uint16(in.number(2))}
			in.short = in.short || s.rails[k].count == 0
		}
	}
	if b[5] != 0 {
		s.ports = uint32(in.number(4))
	}
	if s.rails[KindInfiniBand].count > 0 {
		s.subnets = uint32(in.number(4))
		n := in.number(1)
		for range min(n, maxPKeys) {
			s.pkeys = append(s.pkeys, uint16(in.number(2)))
		}
		in.short = in.short || n > maxPKeys
	}
	if in.short {
		return fail(errors.New("it ends early or a number is out of range"))
	}
	return s, nil
}

// reader takes numbers off a slice. short says that there were not enough bytes.
type reader struct {
	b     []byte
	short bool
}

func (r *reader) number(size int) (n uint64) {
	if len(r.b) < size {
		r.short = true
		return 0
	}
	for _, c := range r.b[:size] {
		n = n<<8 | uint64(c)
	}
	r.b = r.b[size:]
	return n
}
