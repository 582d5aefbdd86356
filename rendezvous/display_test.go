package rendezvous

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestDisplay(t *testing.T) {
	for _, tt := range []struct{ own, alias, want string }{
		{"", "worker-1", "worker-1"},
		{"worker-1", "worker-1", "worker-1"},
		{"proj-worker-2", "worker-1", "proj-worker-2 (worker-1)"},
		{"train-1", "worker-1", "train-1 (worker-1)"},
		{"pi-worker-1", "worker-1", "pi-worker-1"},
		{"proj-worker-11", "worker-1", "proj-worker-11 (worker-1)"},
		{"myworker-1", "worker-1", "myworker-1 (worker-1)"},
	} {
		require.Equal(t, tt.want, Display(tt.own, tt.alias))
	}
	nameless := Record{ID: "0123456789abcdef", Nonce: "0123456789abcdef", Role: "worker", Addr: addrOf(3)}
	require.Equal(t, "worker at 10.0.0.3", nameless.display())
	nameless.Own = "proj-worker-2"
	require.Equal(t, "proj-worker-2", nameless.display())
}

// Every rank calls every other one by the name of its container: before it comes, by what the environment predicts.
func TestOwnNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var cfgs []Config
		for rank := range 3 {
			cfg := w.config(rank, 3)
			for i := range cfg.Peers {
				cfg.Peers[i].Own = "train-" + cfg.Peers[i].ID[len("worker-"):]
			}
			cfg.Self.Own = "train-" + cfg.Self.ID[len("worker-"):]
			cfgs = append(cfgs, cfg)
		}
		nodes := []*Node{w.start(cfgs[0]), w.start(cfgs[1])}
		time.Sleep(3 * time.Second) // virtual
		for _, n := range nodes {
			s := n.Status(t.Context())
			require.Equal(t, []string{"worker-0 present", "worker-1 present",
				"worker-2 missing: 10.0.0.2:12345: connection refused"}, standings(s))
			require.Equal(t, []string{"train-0", "train-1", "train-2"}, ownNames(s))
			require.Equal(t, "10.0.0.2", s.Ranks[2].Host)
			var missing []Missing
			n.ask(func() { missing = n.missing() })
			require.Equal(t, "train-2 (worker-2) (10.0.0.2:12345: connection refused)", Fold(missing))
			again := n.Status(t.Context())
			require.Equal(t, s, again, "nothing has changed meanwhile")
		}
		require.True(t, nodes[0].Status(t.Context()).Deadline.Equal(nodes[1].Status(t.Context()).Deadline))

		cfgs[2].Self.Own = ""
		nodes = append(nodes, w.start(cfgs[2]))
		nodes[2].SetName("started-by-hand")
		for _, g := range gatherAll(t.Context(), nodes) {
			require.NoError(t, g.err)
			require.Equal(t, "train-1 (worker-1)", g.roster.Members[1].Display())
			require.Equal(t, "worker-2", g.roster.Members[2].Alias, "the host list does not change")
		}
		s := nodes[1].Status(t.Context())
		require.True(t, s.Deadline.IsZero())
		require.Nil(t, s.Outcome)
		nodes[2].SetName("too-late")
		synctest.Wait()
		require.NotContains(t, ownNames(nodes[1].Status(t.Context())), "too-late")
		w.close(nodes...)
	})
}

// Where the environment lists no ranks, as under compose, the present ones tell which are missing and what they are
// called.
func TestGaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		start := func(rank int) *Node {
			cfg := w.config(rank, 4)
			cfg.Peers, cfg.Seeds = nil, []Seed{{Host: "worker", Port: 12345, Role: "worker"}}
			cfg.Self.Own = fmt.Sprintf("proj-worker-%d", rank+1)
			cfg.Lookup = func(context.Context, string) ([]netip.Addr, error) {
				return []netip.Addr{addrOf(0).Addr(), addrOf(2).Addr()}, nil
			}
			return w.start(cfg)
		}
		nodes := []*Node{start(0), start(2)}
		time.Sleep(3 * time.Second) // virtual
		for _, n := range nodes {
			s := n.Status(t.Context())
			require.Equal(t, []string{"worker-0 present", "worker-1 missing: never heard: worker has 2 addresses",
				"worker-2 present", "worker-3 missing: never heard: worker has 2 addresses"}, standings(s))
			require.Equal(t, []string{"proj-worker-1", "proj-worker-2", "proj-worker-3", "proj-worker-4"}, ownNames(s))
		}
		var missing []Missing
		nodes[0].ask(func() { missing = nodes[0].missing() })
		require.Equal(t, "proj-worker-2 (worker-1),proj-worker-4 (worker-3) (never heard: worker has 2 addresses)",
			Fold(missing))
		w.close(nodes...)
	})
}

// A container at a seed's address that does not answer is called by the name that DNS has for it.
func TestNameOfAnAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		cfg := w.config(0, 2)
		cfg.Peers, cfg.Seeds = nil, []Seed{{Host: "worker", Port: 12345}}
		cfg.Lookup = func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{addrOf(1).Addr()}, nil
		}
		asked := 0
		cfg.NameOf = func(_ context.Context, addr netip.Addr) string {
			require.Equal(t, addrOf(1).Addr(), addr)
			asked++
			return "proj-worker-2"
		}
		n := w.start(cfg)
		time.Sleep(10 * time.Second) // virtual
		s := n.Status(t.Context())
		require.Equal(t, []string{"worker-0 present", "10.0.0.1:12345 missing: 10.0.0.1:12345: connection refused"},
			standings(s))
		require.Equal(t, "proj-worker-2", s.Ranks[1].Own)
		require.Equal(t, "10.0.0.1", s.Ranks[1].Host)
		require.Equal(t, 1, asked)
		w.close(n)
	})
}

func ownNames(s Status) (names []string) {
	for _, r := range s.Ranks {
		names = append(names, r.Own)
	}
	return names
}
