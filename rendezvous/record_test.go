package rendezvous

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func genRecord(t *rapid.T) Record {
	r := Record{
		Role:  rapid.StringMatching(`[a-z_.~]{0,64}`).Draw(t, "role"),
		Index: rapid.IntRange(-1, 5000).Draw(t, "index"),
		Rank:  rapid.IntRange(-1, 5000).Draw(t, "rank"),
		Order: rapid.IntRange(0, 100).Draw(t, "order"),
		Nonce: fmt.Sprintf("%016x", rapid.Uint64().Draw(t, "nonce")),
		Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "ip"))),
			rapid.Uint16().Draw(t, "port")),
		Slots:   rapid.IntRange(0, 1024).Draw(t, "slots"),
		GPUs:    rapid.IntRange(0, 16).Draw(t, "gpus"),
		Version: rapid.StringMatching(`[0-9a-z.-]{0,32}`).Draw(t, "version"),
		Fabric:  rapid.SliceOfN(rapid.Byte(), 0, 16).Draw(t, "fabric"),
	}
	r.ID = MakeID(r.Role, r.Index, r.Nonce)
	return r
}

func TestRecordRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := genRecord(t)
		b, err := want.encode()
		want.Fabric = nil // the control connection says it
		require.NoError(t, err)
		require.Less(t, len(b), 200, "gossip packets hold eight records of this size, and only two of 512 bytes")
		got, err := decodeRecord(b, want.Addr)
		require.NoError(t, err)
		require.Empty(t, cmp.Diff(want, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
			cmp.Comparer(func(a, b []byte) bool { return string(a) == string(b) })))
		for i := range b {
			_, _ = decodeRecord(b[:i], want.Addr) // cut off anywhere: an error or a record, never a panic
		}
	})
}

func FuzzDecodeRecord(f *testing.F) {
	r := Record{ID: "worker-1", Role: "worker", Index: 1, Nonce: "0123456789abcdef", Version: "1"}
	b, err := r.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte{metaFormat})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeRecord(b, netip.AddrPort{})
		if err == nil && r.validate() != nil {
			t.Fatalf("accepted %+v: %v", r, r.validate())
		}
	})
}

// The ranks depend on the set of records, not on the order of their arrival.
func TestAssignIgnoresTheOrderOfArrival(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 20).Draw(t, "size")
		declared := rapid.Permutation(ints(n)).Draw(t, "ranks")
		records := make([]Record, n)
		for i := range records {
			records[i] = Record{Role: rapid.SampledFrom([]string{"ps", "worker"}).Draw(t, "role"), Index: -1, Rank: -1,
				Order: rapid.IntRange(0, 2).Draw(t, "order"),
				Nonce: fmt.Sprintf("%016x", i), Addr: addrOf(rapid.IntRange(0, 3).Draw(t, "addr"))}
			if rapid.Bool().Draw(t, "declared") {
				records[i].Rank = declared[i]
			}
			records[i].ID = records[i].Nonce
		}
		want, err := assign(records, n)
		require.NoError(t, err)
		for i, m := range want {
			require.Equal(t, i, m.Rank)
		}
		got, err := assign(rapid.Permutation(records).Draw(t, "arrival"), n)
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.Equal(t, hashMembers(want), hashMembers(got))
	})
}

func ints(n int) []int {
	s := make([]int, n)
	for i := range s {
		s[i] = i
	}
	return s
}

// The alias follows from the other fields.
func TestHashCoversEveryField(t *testing.T) {
	base := Member{Record: Record{ID: "a", Role: "b", Nonce: "0000000000000001", Host: "d", Version: "e",
		Fabric: []byte("f"), Launch: "g"}, Alias: "h"}
	seen := map[string]string{hashMembers([]Member{base}): "base"}
	for name, edit := range map[string]func(*Member){
		"id": func(m *Member) { m.ID = "x" }, "role": func(m *Member) { m.Role = "x" },
		"nonce": func(m *Member) { m.Nonce = "0000000000000002" },
		"host":  func(m *Member) { m.Host = "x" }, "version": func(m *Member) { m.Version = "x" },
		"fabric":   func(m *Member) { m.Fabric = []byte("x") },
		"launcher": func(m *Member) { m.Launch = "x" }, "addr": func(m *Member) { m.Addr = addrOf(1) },
		"rank": func(m *Member) { m.Rank = 1 }, "index": func(m *Member) { m.Index = 1 },
		"order": func(m *Member) { m.Order = 1 },
		"slots": func(m *Member) { m.Slots = 1 }, "gpus": func(m *Member) { m.GPUs = 1 },
		"task": func(m *Member) { m.Task = 1 }, "exec": func(m *Member) { m.Exec = "x" },
	} {
		m := base
		edit(&m)
		h := hashMembers([]Member{m})
		require.Empty(t, seen[h], "%s does not change the hash", name)
		seen[h] = name
	}
}

func TestVerifyRefusesARosterThatIsNotOurs(t *testing.T) {
	self := Record{ID: "worker-1", Role: "worker", Index: 1, Rank: 1, Nonce: "0000000000000001"}
	zero := Record{ID: "worker-0", Role: "worker", Index: 0, Rank: 0, Nonce: "0000000000000000"}
	make2 := func(records ...Record) Roster {
		members, err := assign(records, len(records))
		require.NoError(t, err)
		return Roster{Epoch: 1, Hash: hashMembers(members), Members: members}
	}
	good := make2(zero, self)
	require.NoError(t, good.verify(&self, false))

	bad := good
	bad.Hash = "00"
	_, err := decodeRoster(t, &bad)
	require.ErrorContains(t, err, "has hash")

	older := self
	older.Nonce = "0000000000000009"
	r := make2(zero, older)
	require.ErrorContains(t, r.verify(&self, false), "does not hold this start")

	moved := self
	moved.Rank = 2
	r = make2(zero, self)
	require.ErrorContains(t, r.verify(&moved, false), "but its environment says 2")
}

func TestFold(t *testing.T) {
	for _, tt := range []struct {
		want string
		in   []Missing
	}{
		{"", nil},
		{"worker-3 (never heard)", []Missing{{Name: "worker-3", Reason: "never heard"}}},
		{"worker-[3-5],worker-9 (never heard); ps-0 (no route)", []Missing{
			{Name: "worker-3", Reason: "never heard"}, {Name: "worker-4", Reason: "never heard"},
			{Name: "ps-0", Reason: "no route"},
			{Name: "worker-5", Reason: "never heard"}, {Name: "worker-9", Reason: "never heard"}}},
		{"10.0.0.1:12345,2 ranks (x)", []Missing{{Name: "10.0.0.1:12345", Reason: "x"},
			{Name: "2 ranks", Reason: "x"}}},
		{"worker-[1-2] (connection refused); worker-3 (10.0.0.3:22: no answer); " +
			"worker-[4-5] (heard by gossip, but no answer)", []Missing{
			{Name: "worker-1", Reason: "10.0.0.1:22: connection refused"},
			{Name: "worker-2", Reason: "10.0.0.2:22: connection refused"},
			{Name: "worker-3", Reason: "10.0.0.3:22: no answer"},
			{Name: "worker-4", Reason: "heard by gossip from 10.0.0.4:22, but 10.0.0.4:22: no answer"},
			{Name: "worker-5", Reason: "heard by gossip from [fd00::5]:22, but [fd00::5]:22: no answer"}}},
		{"a-[0-1] (name does not resolve); b-0 (name b-0.x does not resolve: b-0.x)", []Missing{
			{Name: "a-0", Reason: "name a-0.x does not resolve"}, {Name: "a-1", Reason: "name a-1.x does not resolve"},
			{Name: "b-0", Reason: "name b-0.x does not resolve: b-0.x"}}},
		{"train-[3-5] (worker-[3-5]),train-7 (worker-6),train-8 (worker-8) (x)", []Missing{
			{Name: "train-3 (worker-3)", Reason: "x"}, {Name: "train-4 (worker-4)", Reason: "x"},
			{Name: "train-5 (worker-5)", Reason: "x"}, {Name: "train-7 (worker-6)", Reason: "x"},
			{Name: "train-8 (worker-8)", Reason: "x"}}},
		{"p_worker_[2-3] (worker-[1-2]) (x)", []Missing{
			{Name: "p_worker_2 (worker-1)", Reason: "x"}, {Name: "p_worker_3 (worker-2)", Reason: "x"}}},
		{"a-1 (b),a-2 (b) (x)", []Missing{{Name: "a-1 (b)", Reason: "x"}, {Name: "a-2 (b)", Reason: "x"}}},
		{"node[098-100],node1,10.0.0.1,10.0.0.2 (x)", []Missing{
			{Name: "node098", Reason: "x"}, {Name: "node099", Reason: "x"}, {Name: "node100", Reason: "x"},
			{Name: "node1", Reason: "x"}, {Name: "10.0.0.1", Reason: "x"}, {Name: "10.0.0.2", Reason: "x"}}},
		{"v[8-10] (worker-[8-10]) (x)", []Missing{{Name: "v8 (worker-8)", Reason: "x"},
			{Name: "v9 (worker-9)", Reason: "x"}, {Name: "v10 (worker-10)", Reason: "x"}}},
		{"a-01,a-2 (x)", []Missing{{Name: "a-01", Reason: "x"}, {Name: "a-2", Reason: "x"}}},
	} {
		require.Equal(t, tt.want, Fold(tt.in))
	}
}

// decodeRoster returns a roster as its receiver sees it.
func decodeRoster(t *testing.T, r *Roster) (*Roster, error) {
	b, err := (&message{Type: prepare, Roster: r}).encode()
	require.NoError(t, err)
	_, n := binary.Uvarint(b)
	m, err := decodeMessage(b[n:], nil)
	return m.Roster, err
}
