package rdma

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Summary is what other hosts need to know about this one.
type Summary struct {
	// Devices is the number of verbs devices, 255 for more.
	Devices uint8
	// InfiniBand and Ethernet are the ports that can be used.
	InfiniBand, Ethernet Rails
	// Reason is what stands in the way if there is a device and none of its ports can be used.
	Reason Reason
}

// Rails are ports of one link layer.
type Rails struct {
	// Count is the number of ports, 255 for more.
	Count uint8
	// DeciGbps is the rate of the slowest of them in tenths of Gb/s, 0 if unknown.
	DeciGbps uint16
}

// Usable reports whether verbs programs can run here.
func (s Summary) Usable() bool { return s.InfiniBand.Count > 0 || s.Ethernet.Count > 0 }

// Summary sums up r.
func (r Report) Summary() Summary {
	s := Summary{Devices: uint8(min(len(r.Devices), math.MaxUint8))}
	note := func(why Reason) { s.Reason = max(s.Reason, why) }
	for _, d := range r.Devices {
		switch {
		case !d.visible:
			note(ReasonHidden)
			continue
		case d.Verbs == "":
			note(ReasonNoVerbs)
			continue
		case !d.Openable:
			note(reasonOf(d.open))
			continue
		}
		note(ReasonPort)
		for _, p := range d.Ports {
			switch rails := s.rails(p.LinkLayer); {
			case !p.active():
			case rails == nil:
				note(ReasonLinkLayer)
			case !r.Limits.enough():
				note(ReasonMemlock)
			default:
				rails.add(p.RateGbps)
			}
		}
	}
	if s.Usable() {
		s.Reason = ReasonNone
	}
	return s
}

func (s *Summary) rails(linkLayer string) *Rails {
	switch linkLayer {
	case "InfiniBand":
		return &s.InfiniBand
	case "Ethernet":
		return &s.Ethernet
	}
	return nil
}

func (r *Rails) add(gbps float64) {
	rate := uint16(min(math.Round(gbps*10), math.MaxUint16))
	if r.Count == 0 || rate < r.DeciGbps {
		r.DeciGbps = rate
	}
	if r.Count < math.MaxUint8 {
		r.Count++
	}
}

// String returns the summary in a few words: "none", "2 x InfiniBand 400 Gb/s", "1 device, not usable: memlock".
func (s Summary) String() string {
	var parts []string
	for _, l := range []struct {
		rails Rails
		name  string
	}{{s.InfiniBand, "InfiniBand"}, {s.Ethernet, "Ethernet"}} {
		if l.rails.Count == 0 {
			continue
		}
		part := fmt.Sprintf("%d x %s", l.rails.Count, l.name)
		if l.rails.DeciGbps > 0 {
			part += " " + strconv.FormatFloat(float64(l.rails.DeciGbps)/10, 'f', -1, 64) + " Gb/s"
		}
		parts = append(parts, part)
	}
	switch {
	case len(parts) > 0:
		return strings.Join(parts, ", ")
	case s.Devices == 0:
		return "none"
	case s.Devices == 1:
		return "1 device, not usable: " + s.Reason.String()
	}
	return fmt.Sprintf("%d devices, not usable: %s", s.Devices, s.Reason)
}

// The encoding: one byte each of version, devices and reason, then for InfiniBand and Ethernet one byte count and two
// bytes rate, big endian. Later versions of paiinit may append up to 7 bytes; readers ignore what they do not know.
const (
	summaryVersion = 1
	summarySize    = 9
	maxSummary     = 16
)

// Encode returns s in at most 16 bytes.
func (s Summary) Encode() []byte {
	b := []byte{summaryVersion, s.Devices, byte(s.Reason)}
	for _, r := range []Rails{s.InfiniBand, s.Ethernet} {
		b = append(b, r.Count)
		b = binary.BigEndian.AppendUint16(b, r.DeciGbps)
	}
	return b
}

// DecodeSummary returns what Encode made b from.
func DecodeSummary(b []byte) (Summary, error) {
	switch {
	case len(b) < summarySize || len(b) > maxSummary:
		return Summary{}, fmt.Errorf("rdma: decoding summary: %d bytes, want %d to %d", len(b), summarySize, maxSummary)
	case b[0] != summaryVersion:
		return Summary{}, fmt.Errorf("rdma: decoding summary: version %d, want %d", b[0], summaryVersion)
	case b[2] >= byte(reasons):
		return Summary{}, errors.New("rdma: decoding summary: unknown reason")
	}
	return Summary{
		Devices:    b[1],
		Reason:     Reason(b[2]),
		InfiniBand: Rails{b[3], binary.BigEndian.Uint16(b[4:])},
		Ethernet:   Rails{b[6], binary.BigEndian.Uint16(b[7:])},
	}, nil
}
