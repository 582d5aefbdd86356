package rendezvous

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Record is what a container says of itself. Gossip carries it in a compact form (Host, Fabric and what follows it are left out there); the control
// connection carries all of it as JSON.
type Record struct {
	ID      string         `json:"id"`       // "role-index", or Nonce in hex when the index is unknown
	Role    string         `json:"role"`     // at most 64 bytes
	Index   int            `json:"index"`    // within the role; -1 = unknown
	Rank    int            `json:"rank"`     // -1 = to be agreed
	Order   int            `json:"order"`    // position of the role in rank order; ranks that the environment does not tell follow it
	Nonce   string         `json:"nonce"`    // 16 hex digits, new at every start: tells a restarted container from the one before
	Addr    netip.AddrPort `json:"addr"`     // where its port is reached
	Host    string         `json:"host"`     // gethostname(2)
	Slots   int            `json:"slots"`    // processes that a launcher may start here; 0 = launch only
	GPUs    int            `json:"gpus"`     // devices seen
	Version string         `json:"version"`  // of paiinit, at most 32 bytes
	Fabric  []byte         `json:"fabric"`   // summary of the verbs devices, at most 64 bytes, opaque here
	Launch  string         `json:"launcher"` // what the launcher says of its version here; may be empty
	Task    int            `json:"task"`     // a port kept free here for the job's own use; 0 = none
	Exec    string         `json:"exec"`     // who runs the command, in the caller's words: all ranks must say the same
	Network string         `json:"network"`  // interface that has the address of Addr; "" = not known
}

const (
	maxRole    = 64
	maxVersion = 32
	maxFabric  = 64
	nonceBytes = 8
	metaFormat = 1
)

func (r *Record) validate() error {
	switch {
	case r.ID == "":
		return errors.New("record has no id")
	case len(r.Role) > maxRole:
		return fmt.Errorf("role %q is longer than %d bytes", r.Role, maxRole)
	case len(r.Version) > maxVersion:
		return fmt.Errorf("version %q is longer than %d bytes", r.Version, maxVersion)
	case len(r.Fabric) > maxFabric:
		return fmt.Errorf("fabric summary is longer than %d bytes", maxFabric)
	case len(r.Nonce) != 2*nonceBytes:
		return fmt.Errorf("nonce %q is not %d hex digits", r.Nonce, 2*nonceBytes)
	case r.Index < -1 || r.Rank < -1 || r.Slots < 0 || r.GPUs < 0 || r.Order < 0 || r.Task < 0:
		return fmt.Errorf("record of %s has a negative number", r.ID)
	}
	if _, err := parseNonce(r.Nonce); err != nil {
		return err
	}
	return nil
}

func parseNonce(s string) (uint64, error) {
	var n uint64
	if len(s) != 2*nonceBytes {
		return 0, fmt.Errorf("nonce %q is not %d hex digits", s, 2*nonceBytes)
	}
	for _, c := range []byte(s) {
		d := strings.IndexByte("0123456789abcdef", c)
		if d < 0 {
			return 0, fmt.Errorf("nonce %q is not hexadecimal", s)
		}
		n = n<<4 | uint64(d)
	}
	return n, nil
}

// before is the order of containers whose ranks have to be agreed: the same on every container that knows the same set.
func (r *Record) before(o *Record) int {
	return cmp.Or(
		cmp.Compare(r.Order, o.Order),
		strings.Compare(r.Role, o.Role),
		cmp.Compare(uint(r.Index), uint(o.Index)), // -1, unknown, comes last
		r.Addr.Addr().Compare(o.Addr.Addr()),
		cmp.Compare(r.Addr.Port(), o.Addr.Port()),
		strings.Compare(r.Nonce, o.Nonce),
	)
}

// encode packs the record for gossip: format byte, nonce, five uvarints (numbers that may be -1 are shifted by one), and
// two length-prefixed byte strings. The address travels in memberlist's own header.
func (r *Record) encode() ([]byte, error) {
	if err := r.validate(); err != nil {
		return nil, err
	}
	nonce, err := parseNonce(r.Nonce)
	if err != nil {
		return nil, err
	}
	b := append(make([]byte, 0, 96), metaFormat)
	b = binary.BigEndian.AppendUint64(b, nonce)
	for _, n := range []int{r.Index + 1, r.Rank + 1, r.Order, r.Slots, r.GPUs} {
		b = binary.AppendUvarint(b, uint64(n))
	}
	for _, s := range []string{r.Role, r.Version} {
		b = append(b, byte(len(s)))
		b = append(b, s...)
	}
	return b, nil
}

// decodeRecord is the inverse of encode.
func decodeRecord(b []byte, addr netip.AddrPort) (Record, error) {
	if len(b) < 1+nonceBytes || b[0] != metaFormat {
		return Record{}, errors.New("not a record of this format")
	}
	r := Record{Nonce: fmt.Sprintf("%016x", binary.BigEndian.Uint64(b[1:])), Addr: addr}
	b = b[1+nonceBytes:]
	var nums [5]int
	for i := range nums {
		v, n := binary.Uvarint(b)
		if n <= 0 || v > 1<<31 {
			return Record{}, errors.New("record ends early or holds a number out of range")
		}
		nums[i], b = int(v), b[n:]
	}
	r.Index, r.Rank, r.Order, r.Slots, r.GPUs = nums[0]-1, nums[1]-1, nums[2], nums[3], nums[4]
	var strs [2]string
	for i := range strs {
		if len(b) < 1 || len(b) < 1+int(b[0]) {
			return Record{}, errors.New("record ends early")
		}
		strs[i], b = string(b[1:1+int(b[0])]), b[1+int(b[0]):]
	}
	r.Role, r.Version = strs[0], strs[1]
	r.ID = MakeID(r.Role, r.Index, r.Nonce)
	if err := r.validate(); err != nil {
		return Record{}, err
	}
	return r, nil
}

// MakeID names a container: "role-index", or its nonce when the index is unknown.
func MakeID(role string, index int, nonce string) string {
	if !isPlain(role, index) {
		return nonce
	}
	return string(appendID(nil, role, index))
}

func isPlain(role string, index int) bool { return index >= 0 && role != "" }

func appendID(b []byte, role string, index int) []byte {
	return strconv.AppendInt(append(append(b, role...), '-'), int64(index), 10)
}
