package rendezvous

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// A message on the wire is its length as a uvarint, its type, a byte that says which parts follow, and the parts in
// that order. Numbers are varints; strings and bytes have their length before them.
const (
	hasRecord = 1 << iota
	hasEpoch
	hasHash
	hasRoster
	hasState
	hasParent
	hasRest // JSON
	isLooking
)

// states are sent as their index in this list.
var states = [...]Phase{Gathering, Prepared, Running, Ended}

func (m *message) encode() ([]byte, error) {
	b := make([]byte, binary.MaxVarintLen32, 128)
	b = append(b, byte(m.Type), 0)
	parts := len(b) - 1
	if m.Record != nil {
		b[parts] |= hasRecord
		b = appendRecord(b, m.Record, m.ref)
	}
	if m.Epoch != 0 {
		b[parts] |= hasEpoch
		b = binary.AppendUvarint(b, m.Epoch)
	}
	if m.Hash != "" {
		h, err := hex.DecodeString(m.Hash)
		if err != nil {
			return nil, fmt.Errorf("hash %q: %w", m.Hash, err)
		}
		b[parts] |= hasHash
		b = appendString(b, string(h))
	}
	switch {
	case m.packed != nil:
		b[parts] |= hasRoster
		b = append(b, m.packed...)
	case m.Roster != nil:
		b[parts] |= hasRoster
		b = append(b, m.Roster.pack()...)
	}
	for i, s := range states {
		if s == m.State {
			b[parts] |= hasState
			b = append(b, byte(i))
		}
	}
	if m.Parent != nil {
		b[parts] |= hasParent
		b = appendAddr(appendString(b, m.Parent.ID), m.Parent.Addr)
	}
	if m.Looking {
		b[parts] |= isLooking
	}
	rest, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	if len(rest) > len("{}") {
		b[parts] |= hasRest
		b = append(b, rest...)
	}
	size := binary.AppendUvarint(nil, uint64(len(b)-binary.MaxVarintLen32))
	start := binary.MaxVarintLen32 - len(size)
	copy(b[start:], size)
	return b[start:], nil
}

func decodeMessage(b []byte, ref *Record) (message, error) {
	var m message
	if len(b) < 2 {
		return m, errors.New("a message without a type")
	}
	m.Type = kind(b[0])
	parts := b[1]
	d := newUnpacker(b[2:])
	if parts&hasRecord != 0 {
		if m.Type != register {
			ref = nil
		}
		r := d.record(ref)
		m.Record = &r
	}
	if parts&hasEpoch != 0 {
		m.Epoch = d.number()
	}
	if parts&hasHash != 0 {
		m.Hash = hex.EncodeToString([]byte(d.string()))
	}
	if parts&hasRoster != 0 {
		m.Roster = d.roster()
	}
	if parts&hasState != 0 {
		if i := int(d.byte()); i < len(states) {
			m.State = states[i]
		}
	}
	m.Looking = parts&isLooking != 0
	if parts&hasParent != 0 {
		m.Parent = &parentRank{d.string(), d.addr()}
	}
	switch {
	case d.short:
		return m, errors.New("a message that ends early")
	case d.err != nil:
		return m, d.err
	}
	if parts&hasRest != 0 {
		if err := json.Unmarshal(d.b[d.at:], &m); err != nil {
			return m, fmt.Errorf("a message that cannot be read: %w", err)
		}
	}
	return m, nil
}

// These fields of a record are equal to those of the reference, and not sent.
const (
	sameRole = 1 << iota
	sameOrder
	sameSlots
	sameGPUs
	sameVersion
	sameFabric
	sameLaunch
	sameTask
	sameExec
	sameHost
	samePort
	plainID // ID is as MakeID returns it
	sameNetwork
	hasUptime // unlike the others, because most messages have none
	hasOwn    // Own follows; "" stands for the value of Host
)

// minRecord is a lower bound of the packed length of a record.
const minRecord = 12

// appendRecord packs r as the difference to ref; a nil ref is a zero record.
func appendRecord(b []byte, r, ref *Record) []byte {
	if ref == nil {
		ref = &Record{}
	}
	same := 0
	mark := func(bit int, is bool) {
		if is {
			same |= bit
		}
	}
	mark(sameRole, r.Role == ref.Role)
	mark(sameOrder, r.Order == ref.Order)
	mark(sameSlots, r.Slots == ref.Slots)
	mark(sameGPUs, r.GPUs == ref.GPUs)
	mark(sameVersion, r.Version == ref.Version)
	mark(sameFabric, string(r.Fabric) == string(ref.Fabric))
	mark(sameLaunch, r.Launch == ref.Launch)
	mark(sameTask, r.Task == ref.Task)
	mark(sameExec, r.Exec == ref.Exec)
	mark(sameHost, r.Host == ref.Host)
	mark(samePort, r.Addr.Port() == ref.Addr.Port())
	mark(sameNetwork, r.Network == ref.Network)
	mark(hasUptime, r.Uptime != 0)
	mark(hasOwn, r.Own != "")
	mark(plainID, r.ID == MakeID(r.Role, r.Index, r.Nonce))
	b = append(b, metaFormat)
	b = binary.AppendUvarint(b, uint64(same))
	nonce, _ := parseNonce(r.Nonce) // valid: the record is our own, or was validated
	b = binary.BigEndian.AppendUint64(b, nonce)
	b = binary.AppendVarint(b, int64(r.Index-ref.Index))
	b = binary.AppendVarint(b, int64(r.Rank-ref.Rank))
	for _, f := range []struct {
		bit int
		n   int
	}{
		{sameOrder, r.Order}, {sameSlots, r.Slots}, {sameGPUs, r.GPUs}, {sameTask, r.Task},
		{samePort, int(r.Addr.Port())},
	} {
		if same&f.bit == 0 {
			b = binary.AppendVarint(b, int64(f.n))
		}
	}
	for _, f := range []struct {
		bit int
		s   string
	}{
		{sameRole, r.Role}, {sameVersion, r.Version}, {sameFabric, string(r.Fabric)}, {sameLaunch, r.Launch},
		{sameExec, r.Exec}, {sameHost, r.Host}, {sameNetwork, r.Network}, {plainID, r.ID},
	} {
		if same&f.bit == 0 {
			b = appendString(b, f.s)
		}
	}
	if r.Uptime != 0 {
		b = binary.AppendVarint(b, int64(r.Uptime))
	}
	if own := r.Own; own != "" {
		if own == r.Host { // as in Kubernetes
			own = ""
		}
		b = appendString(b, own)
	}
	return appendString(b, string(r.Addr.Addr().AsSlice()))
}

func (d *unpacker) record(ref *Record) Record {
	if ref == nil {
		ref = &Record{}
	}
	r := *ref
	if d.byte() != metaFormat {
		d.short = true
		return r
	}
	same := int(d.number())
	r.Nonce = d.name(hex.AppendEncode(d.scratch[:0], d.take(nonceBytes)))
	r.Index = ref.Index + d.int()
	r.Rank = ref.Rank + d.int()
	port := int(ref.Addr.Port())
	for _, f := range []struct {
		bit int
		n   *int
	}{{sameOrder, &r.Order}, {sameSlots, &r.Slots}, {sameGPUs, &r.GPUs}, {sameTask, &r.Task}, {samePort, &port}} {
		if same&f.bit == 0 {
			*f.n = d.int()
		}
	}
	var fabric string
	for _, f := range []struct {
		bit int
		s   *string
	}{
		{sameRole, &r.Role}, {sameVersion, &r.Version}, {sameFabric, &fabric}, {sameLaunch, &r.Launch},
		{sameExec, &r.Exec}, {sameHost, &r.Host}, {sameNetwork, &r.Network},
	} {
		if same&f.bit == 0 {
			*f.s = d.string()
		}
	}
	if same&sameFabric == 0 {
		if r.Fabric = nil; fabric != "" {
			r.Fabric = []byte(fabric)
		}
	}
	switch {
	case same&plainID == 0:
		r.ID = d.string()
	case isPlain(r.Role, r.Index):
		r.ID = d.name(appendID(d.scratch[:0], r.Role, r.Index))
	default:
		r.ID = r.Nonce
	}
	if r.Uptime = 0; same&hasUptime != 0 {
		r.Uptime = d.int()
	}
	if r.Own = ""; same&hasOwn != 0 {
		r.Own = cmp.Or(d.string(), r.Host)
	}
	ip, _ := netip.AddrFromSlice(d.take(d.number()))
	r.Addr = netip.AddrPortFrom(ip, uint16(port))
	return r
}

// encode packs the record for gossip, which carries up to eight of them in a packet: without a reference, without Host,
// Fabric and the fields after it, and without the address, which is in memberlist's own header.
func (r *Record) encode() ([]byte, error) {
	if err := r.validate(); err != nil {
		return nil, err
	}
	nonce, _ := parseNonce(r.Nonce) // valid: see above
	b := binary.BigEndian.AppendUint64(append(make([]byte, 0, 96), metaFormat), nonce)
	for _, n := range []int{r.Index + 1, r.Rank + 1, r.Order, r.Slots, r.GPUs} { // -1 becomes 0
		b = binary.AppendUvarint(b, uint64(n))
	}
	return appendString(appendString(b, r.Role), r.Version), nil
}

// decodeRecord is the inverse of encode.
func decodeRecord(b []byte, addr netip.AddrPort) (Record, error) {
	d := newUnpacker(b)
	if d.byte() != metaFormat {
		return Record{}, errors.New("not a record of this format")
	}
	r := Record{Nonce: hex.EncodeToString(d.take(nonceBytes)), Addr: addr}
	for _, n := range []*int{&r.Index, &r.Rank, &r.Order, &r.Slots, &r.GPUs} {
		*n = d.size()
	}
	r.Index, r.Rank = r.Index-1, r.Rank-1
	r.Role, r.Version = d.string(), d.string()
	if d.short {
		return Record{}, errors.New("record ends early or holds a number out of range")
	}
	r.ID = MakeID(r.Role, r.Index, r.Nonce)
	if err := r.validate(); err != nil {
		return Record{}, err
	}
	return r, nil
}

// pack writes a roster: epoch, hash, and each member as the difference to the one before.
func (r *Roster) pack() []byte {
	h, _ := hex.DecodeString(r.Hash)
	b := binary.AppendUvarint(nil, r.Epoch)
	b = appendString(b, string(h))
	return append(b, packMembers(r.Members)...)
}

func packMembers(members []Member) []byte {
	b := binary.AppendUvarint(make([]byte, 0, 64*len(members)), uint64(len(members)))
	ref := &Record{}
	for i := range members {
		b = appendRecord(b, &members[i].Record, ref)
		ref = &members[i].Record
	}
	return b
}

func (d *unpacker) roster() *Roster {
	r := &Roster{Epoch: d.number(), Hash: hex.EncodeToString([]byte(d.string()))}
	ref, start := &Record{}, d.at
	n := d.number()
	most := min(n, uint64((len(d.b)-d.at)/minRecord))
	r.Members = make([]Member, 0, most)
	d.names.Grow(int(most) * usualNames)
	for ; n > 0 && !d.short; n-- {
		m := Member{Record: d.record(ref)}
		m.Alias = m.alias()
		r.Members = append(r.Members, m)
		ref = &r.Members[len(r.Members)-1].Record
	}
	if h := sha256.Sum256(d.b[start:d.at]); !d.short && hex.EncodeToString(h[:]) != r.Hash {
		d.err = fmt.Errorf("roster of epoch %d has hash %.12s, but its members give %.12x", r.Epoch, r.Hash, h)
	}
	return r
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendAddr(b []byte, a netip.AddrPort) []byte {
	return binary.AppendUvarint(appendString(b, string(a.Addr().AsSlice())), uint64(a.Port()))
}

// usualNames is the length of the nonce and the id of a record.
const usualNames = 2*nonceBytes + 16

// unpacker reads what was packed. When the bytes run out it returns zeros. All ranks of a job unpack a roster at the
// same moment, so its strings are parts of two long ones, rather than several hundred allocations.
type unpacker struct {
	b       []byte
	s       string // b as a string
	at      int
	names   strings.Builder // strings that are not in s
	scratch [64]byte
	short   bool
	err     error // another error
}

func newUnpacker(b []byte) *unpacker { return &unpacker{b: b, s: string(b)} }

func (d *unpacker) take(n uint64) []byte {
	if d.short || n > uint64(len(d.b)-d.at) {
		d.short = true
		return nil
	}
	begin := d.at
	d.at += int(n)
	return d.b[begin:d.at]
}

// name copies b, which the next call overwrites, to a string.
func (d *unpacker) name(b []byte) string {
	begin := d.names.Len()
	d.names.Write(b)
	return d.names.String()[begin:]
}

func (d *unpacker) byte() byte {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *unpacker) number() uint64 {
	v, n := binary.Uvarint(d.b[d.at:])
	if n <= 0 {
		d.short = true
		return 0
	}
	d.at += n
	return v
}

// size reads a number that cannot be negative.
func (d *unpacker) size() int {
	v := d.number()
	if v > 1<<31 {
		d.short = true
		return 0
	}
	return int(v)
}

func (d *unpacker) int() int {
	v, n := binary.Varint(d.b[d.at:])
	if n <= 0 || v > 1<<31 || v < -1<<31 {
		d.short = true
		return 0
	}
	d.at += n
	return int(v)
}

func (d *unpacker) string() string {
	n := len(d.take(d.number()))
	return d.s[d.at-n : d.at]
}

func (d *unpacker) addr() netip.AddrPort {
	ip, _ := netip.AddrFromSlice(d.take(d.number()))
	return netip.AddrPortFrom(ip, uint16(d.number()))
}
