package rendezvous

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
)

// filled sets every field of a struct to a value that is not zero, so that a forgotten field is noticed.
func filled(t *testing.T, v reflect.Value) {
	t.Helper()
	for i := range v.NumField() {
		f := v.Field(i)
		switch x := f.Addr().Interface().(type) {
		case *netip.AddrPort:
			*x = netip.MustParseAddrPort("[2001:db8::7]:2222")
			continue
		case *[]byte:
			*x = []byte{0, 255, '"'}
			continue
		}
		switch f.Kind() {
		case reflect.String:
			f.SetString("é " + v.Type().Field(i).Name)
		case reflect.Int:
			f.SetInt(int64(1000 + i))
		default:
			t.Fatalf("field %s: teach the test about %v", v.Type().Field(i).Name, f.Type())
		}
	}
}

func TestEveryFieldOfARecordTravels(t *testing.T) {
	var r Record
	filled(t, reflect.ValueOf(&r).Elem())
	r.Nonce = NewNonce()
	for _, ref := range []*Record{nil, {}, {Role: "x", Rank: 7, Fabric: []byte("y")}, &r} {
		d := newUnpacker(appendRecord(nil, &r, ref))
		require.Equal(t, r, d.record(ref))
		require.False(t, d.short)
		require.Empty(t, d.b[d.at:])
	}
	// Fields that are zero, but not in the reference.
	zero := Record{ID: MakeID("", -1, r.Nonce), Index: -1, Rank: -1, Nonce: r.Nonce}
	d := newUnpacker(appendRecord(nil, &zero, &r))
	require.Equal(t, zero, d.record(&r))
}

func TestMessagesTravel(t *testing.T) {
	members, err := assign([]Record{
		{ID: "master-0", Role: "master", Index: 0, Rank: 0, Nonce: NewNonce(), Addr: addrOf(0), Host: "a"},
		{ID: "worker-0", Role: "worker", Index: 0, Rank: -1, Order: 1, Nonce: NewNonce(), Addr: addrOf(1), Host: "b"},
		{ID: "b", Role: "", Index: -1, Rank: -1, Order: 1, Nonce: NewNonce(),
			Addr: netip.MustParseAddrPort("[::1]:1"), Host: "c"},
	}, 3)
	require.NoError(t, err)
	for i := range members {
		if members[i].ID == "b" {
			members[i].ID = members[i].Nonce
		}
	}
	roster := &Roster{Epoch: 3, Hash: hashMembers(members), Members: members}
	self := members[1].Record
	for _, m := range []message{
		{Type: hello, Record: &self},
		{Type: register, ref: &members[0].Record, Record: &self, State: Prepared, Epoch: 7},
		{Type: prepare, Epoch: 3, Roster: roster},
		{Type: prepare, Epoch: 3, packed: roster.pack(), Roster: roster},
		{Type: prepare, Epoch: 1 << 60, Hash: roster.Hash, Parent: &parentRank{"worker-9", addrOf(9)}},
		{Type: done, Outcome: &Outcome{Status: 75, Reason: "because\nof \x00 this"}, Last: true},
		{Type: waiting, Missing: []Missing{{Rank: 1, Name: "worker-1", Reason: "never heard"}}, Present: 2},
		{Type: bye},
	} {
		b, err := m.encode()
		require.NoError(t, err)
		var got message
		w := &wire{rwc: rwc{bytes.NewReader(b)}, ref: m.ref}
		err = w.read(func(x message) error { got = x; return errEnded })
		require.ErrorIs(t, err, errEnded)
		m.ref, m.packed = nil, nil
		require.Equal(t, m, got)
		for cut := range len(b) { // no prefix of it is a message, and none panics
			w := &wire{rwc: rwc{bytes.NewReader(b[:cut])}}
			require.Error(t, w.read(func(message) error { return errors.New("a message") }))
		}
	}
	require.NoError(t, roster.verify(&self, false))
}

type rwc struct{ io.Reader }

func (rwc) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }
func (rwc) Close() error              { return nil }

// Whatever a peer sends, it costs no more memory than it sent, and no panic.
func FuzzMessage(f *testing.F) {
	r := Record{ID: "worker-1", Role: "worker", Index: 1, Rank: 1, Nonce: NewNonce(), Addr: addrOf(1)}
	for _, m := range []message{{Type: hello, Record: &r},
		{Type: prepare, Roster: &Roster{Members: []Member{{Record: r}}}}, {Type: stop, Reason: "x"}} {
		b, err := m.encode()
		require.NoError(f, err)
		f.Add(b[1:])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeMessage(b, &r)
		if err == nil && m.Roster != nil {
			_ = m.Roster.verify(&r, false)
		}
	})
}

// FuzzWire is FuzzMessage with the lengths around the messages: reading ends where the input ends, and every message
// can be encoded again.
func FuzzWire(f *testing.F) {
	r := Record{ID: "worker-1", Role: "worker", Index: 1, Rank: 1, Nonce: NewNonce(), Addr: addrOf(1)}
	var all []byte
	for _, m := range []message{{Type: hello, Record: &r},
		{Type: prepare, Roster: &Roster{Members: []Member{{Record: r}}}}, {Type: stop, Reason: "x"}, {Type: bye}} {
		b, err := m.encode()
		require.NoError(f, err)
		f.Add(b)
		all = append(all, b...)
	}
	f.Add(all)
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01})
	f.Fuzz(func(t *testing.T, b []byte) {
		w := &wire{rwc: rwc{bytes.NewReader(b)}, ref: &r}
		require.Error(t, w.read(func(m message) error {
			_, err := m.encode()
			require.NoError(t, err)
			return nil
		}))
	})
}
