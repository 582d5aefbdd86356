package rendezvous

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "rewrite testdata/wire: other versions will not read the changed messages")

// TestWireGolden compares every message with the bytes that earlier versions read and wrote: testdata/wire has one line
// for each, its name and its bytes in hex.
func TestWireGolden(t *testing.T) {
	var out strings.Builder
	kinds := map[kind]bool{}
	for _, g := range goldenMessages(t) {
		b, err := g.m.encode()
		require.NoError(t, err)
		fmt.Fprintf(&out, "%s %x\n", g.name, b)
		kinds[g.m.Type] = true
	}
	for k := hello; k <= next; k++ {
		require.True(t, kinds[k], "no message of kind %d", k)
	}
	zero, one := goldenRecords()
	for _, r := range []Record{zero, one} {
		b, err := r.encode()
		require.NoError(t, err)
		fmt.Fprintf(&out, "gossip-%s %x\n", r.Role, b)
	}
	const file = "testdata/wire"
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(out.String()), 0o600))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), out.String())
}

// TestWireGoldenIsRead reads what TestWireGolden writes: reading and writing again gives the same bytes.
func TestWireGoldenIsRead(t *testing.T) {
	file, err := os.ReadFile("testdata/wire")
	require.NoError(t, err)
	lines := map[string]string{}
	for line := range strings.Lines(string(file)) {
		name, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		lines[name] = text
	}
	for _, g := range goldenMessages(t) {
		b, err := hex.DecodeString(lines[g.name])
		require.NoError(t, err)
		var got message
		w := &wire{rwc: rwc{bytes.NewReader(b)}, ref: g.m.ref}
		require.ErrorIs(t, w.read(func(m message) error { got = m; return errEnded }), errEnded, g.name)
		got.ref = g.m.ref
		again, err := got.encode()
		require.NoError(t, err)
		require.Equal(t, lines[g.name], hex.EncodeToString(again), g.name)
	}
	zero, one := goldenRecords()
	for _, r := range []Record{zero, one} {
		b, err := hex.DecodeString(lines["gossip-"+r.Role])
		require.NoError(t, err)
		got, err := decodeRecord(b, r.Addr)
		require.NoError(t, err)
		r.Host, r.Fabric, r.Launch, r.Task, r.Exec, r.Network = "", nil, "", 0, "", "" // gossip leaves them out
		require.Equal(t, r, got)
	}
}

type goldenMessage struct {
	name string
	m    message
}

func goldenRecords() (zero, one Record) {
	zero = Record{
		ID: "master-0", Role: "master", Index: 0, Rank: 0, Nonce: "0011223344556677",
		Addr: netip.MustParseAddrPort("10.0.0.1:12345"),
		Host: "node-a", Slots: 8, GPUs: 8, Version: "1.2.3", Fabric: []byte{1, 0, 255},
		Launch: "mpirun (Open MPI) 4.1.4",
		Task:   40000, Exec: "rank0", Network: "eth0",
	}
	one = Record{
		ID: "8899aabbccddeeff", Role: "worker", Index: -1, Rank: -1, Order: 1, Nonce: "8899aabbccddeeff",
		Addr: netip.MustParseAddrPort("[fd00::2]:2222"), Host: "node-b", Slots: 4, Version: "1.2.3", Exec: "rank0",
	}
	return zero, one
}

func goldenMessages(t *testing.T) []goldenMessage {
	zero, one := goldenRecords()
	members, err := assign([]Record{zero, one}, 2)
	require.NoError(t, err)
	r := &Roster{Epoch: 3, Hash: hashMembers(members), Members: members}
	ran := one
	ran.Uptime = 38000
	o := &Outcome{Status: 75, Reason: "worker-1 <lost>\nafter 5 s"}
	now := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	return []goldenMessage{
		{"hello", message{Type: hello, Record: &zero, Epoch: 2}},
		{"register", message{Type: register, ref: &zero, Record: &one, State: Gathering, Looking: true}},
		{"register-size", message{Type: register, ref: &zero, Record: &one, State: Prepared, Epoch: 3, Size: 4}},
		{"register-running", message{Type: register, ref: &zero, Record: &one, State: Running, Epoch: 3}},
		{"register-ended", message{Type: register, ref: &zero, Record: &one, State: Ended, Epoch: 300}},
		{"register-uptime", message{Type: register, ref: &zero, Record: &ran, State: Gathering}},
		{"refuse", message{Type: refuse, Reason: "the greeting holds no record that can be used"}},
		{"refuse-record", message{Type: refuse, Record: &zero, Reason: "master-0 leads already"}},
		{"waiting", message{Type: waiting, Present: 1,
			Missing: []Missing{{Rank: -1, Name: "worker-1", Reason: "never heard"}}}},
		{"prepare", message{Type: prepare, Epoch: 3, Roster: r}},
		{"prepare-packed", message{Type: prepare, Epoch: 3, packed: r.pack()}},
		{"prepare-parent", message{Type: prepare, Epoch: 3, Hash: r.Hash, Parent: &parentRank{"worker-9", one.Addr}}},
		{"ack", message{Type: ack, Epoch: 3, Hash: r.Hash}},
		{"go", message{Type: launched, Epoch: 3}},
		{"started", message{Type: started, Epoch: 3}},
		{"stop", message{Type: stop, Signal: 15, Reason: "worker-1 was stopped by SIGTERM"}},
		{"ended", message{Type: ended, Outcome: o, After: 1 << 40, Clock: 1<<40 + 5, Stopped: true}},
		{"ended-leaves", message{Type: ended, Record: &one, Outcome: o}},
		{"done", message{Type: done, Outcome: &Outcome{}}},
		{"done-last", message{Type: done, Record: &zero, Outcome: o, Last: true}},
		{"done-failure", message{Type: done, Outcome: &Outcome{
			Status: 137, Reason: "MPI rank 4 was killed", After: 192 * time.Minute,
			Stderr: "a\nb", Stdout: "c", Own: true,
			Next: "kubectl logs worker-2",
		}}},
		{"done-ack", message{Type: doneAck}},
		{"inquiry", message{Type: inquiry, Call: 7}},
		{"inquiry-barrier", message{Type: inquiry, Call: 8, Name: "epoch 1"}},
		{"answer", message{Type: answer, Call: 7, Now: now, Ranks: []RankStatus{{
			Rank: 1, Alias: "worker-1", Host: "10.0.0.2", Port: 2222, Standing: Lost, Reason: "lost",
			Since: now.Add(-time.Minute), Slots: -1, GPUs: -1,
			Fabric: []byte{1},
		}}}},
		{"answer-barrier", message{Type: answer, Call: 8,
			Missing: []Missing{{Rank: 1, Name: "worker-1", Reason: "has not called it"}}}},
		{"arrive", message{Type: arrive, Call: 9, Name: "epoch 1"}},
		{"leave", message{Type: leave, Call: 9, Name: "epoch 1"}},
		{"release", message{Type: release, Call: 9}},
		{"released", message{Type: released, Call: 9}},
		{"bye", message{Type: bye}},
		{"announce", message{Type: announce, Record: &one}},
		{"lead", message{Type: lead, Record: &zero}},
		{"lead-blocked", message{Type: lead, Record: &zero, Reason: "no answer at [fd00::2]:2222"}},
		{"lead-passed-on", message{Type: lead, Record: &zero, Name: one.Nonce}},
		{"lead-unknown", message{Type: lead, Name: one.Nonce}},
		{"look", message{Type: look, Record: &one}},
		{"look-generation", message{Type: look, Record: &zero, Generation: 2}},
		{"look-verdict", message{Type: look, Record: &zero, Outcome: o, Last: true}},
		{"seen", message{Type: seen, Name: one.Nonce, State: Running, Hash: r.Hash, Alive: true}},
		{"seen-not", message{Type: seen, Name: one.Nonce, State: Prepared, Hash: r.Hash, Reason: "connection refused"}},
		{"seen-end", message{Type: seen, Name: one.Nonce, State: Ended, Hash: r.Hash, Outcome: o}},
		{"fetch", message{Type: fetch, Hash: r.Hash}},
		{"table", message{Type: table, packed: r.pack()}},
		{"clock", message{Type: clock, Call: 2}},
		{"clock-answer", message{Type: clock, Call: 2, Clock: 123456789}},
		{"clock-answer-kills", message{Type: clock, Call: 2, Clock: 123456789, Kills: 3}},
		{"ping", message{Type: ping}},
		{"pong", message{Type: pong}},
		{"note", message{Type: note, Name: "facts", Text: []byte{1, 0, 255}, Now: now}},
		{"hello-generation", message{Type: hello, Record: &zero, Epoch: 2, Generation: 2}},
		{"again", message{Type: again, Text: []byte("because")}},
		{"cleared", message{Type: cleared, Kills: 3, After: 41000000}},
		{"cleared-nothing", message{Type: cleared}},
		{"next", message{Type: next}},
		{"works", message{Type: works}},
		{"inquiry-brief", message{Type: inquiry, Call: 9, Brief: true}},
		{"answer-ready", message{Type: answer, Call: 9, Ready: true}},
		{"answer-unready", message{Type: answer, Call: 9, Reason: "running: the job is being ended"}},
	}
}
