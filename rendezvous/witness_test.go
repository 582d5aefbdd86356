package rendezvous

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestRankZeroVanishesWhileItTellsTheEnd lets rank 0 die when it has told only some ranks, or one, how the job ended.
func TestRankZeroVanishesWhileItTellsTheEnd(t *testing.T) {
	const size = 16
	for told := range size {
		t.Run(fmt.Sprint(told), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				nodes := w.startAll(size)
				for _, g := range gatherAll(t.Context(), nodes) {
					require.NoError(t, g.err)
				}
				tellLast(t, nodes, told)
				w.set(addrOf(0), nil, syscall.ECONNREFUSED)
				begin := time.Now()
				require.NoError(t, nodes[0].Close())
				ends := map[string]int{}
				for _, n := range nodes[1:] {
					o, err := n.Wait(t.Context())
					ends[fmt.Sprintf("%d, lost %v", o.Status, err != nil)]++
				}
				require.Len(t, ends, 1, "%v", ends)
				require.Less(t, time.Since(begin), 2*time.Second)
				w.close(nodes[1:]...)
			})
		})
	}
}

// TestRankZeroVanishesWhileItClears lets rank 0 die when it has ordered the ranks to clear, and has then told some of
// them, or one, how the job ended.
func TestRankZeroVanishesWhileItClears(t *testing.T) {
	const size = 6
	for told := range size {
		for cleared := range size {
			t.Run(fmt.Sprintf("%d told, %d cleared", told, cleared), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					nodes := w.startAll(size)
					for _, g := range gatherAll(t.Context(), nodes) {
						require.NoError(t, g.err)
					}
					ordered, cancel := context.WithCancel(t.Context())
					var clear sync.WaitGroup
					clear.Go(func() { _, _ = nodes[0].Clear(ordered, nil) })
					for i, n := range nodes[1:] {
						<-n.Clears()
						if i < cleared {
							n.Cleared(0, 0)
						}
					}
					cancel()
					clear.Wait()
					tellLast(t, nodes, told)
					w.crash(nodes[0], syscall.ECONNREFUSED)
					ends := map[string]int{}
					for _, n := range nodes[1:] {
						o, err := n.Wait(t.Context())
						ends[fmt.Sprintf("%d, lost %v", o.Status, err != nil)]++
					}
					want := map[string]int{"3, lost false": size - 1}
					if told == 0 {
						want = map[string]int{"0, lost true": size - 1}
					}
					require.Equal(t, want, ends)
					w.close(nodes[1:]...)
				})
			})
		}
	}
}

// tellLast lets rank 0 tell the last ranks, so many, that the job has ended with status 3.
func tellLast(t *testing.T, nodes []*Node, told int) {
	for _, n := range nodes[len(nodes)-told:] {
		var link *wire
		require.True(t, nodes[0].ask(func() { link = nodes[0].lead.targets[n.self.ID].link }))
		link.send(message{Type: done, Outcome: &Outcome{Status: 3, Reason: "because"}})
		link.flush()
	}
}

// TestRankZeroVanishesBeforeItTellsAnybodyToGo lets rank 0 die when it has all acknowledgements: it may have launched,
// and no other rank knows.
func TestRankZeroVanishesBeforeItTellsAnybodyToGo(t *testing.T) {
	const size = 5
	for name, again := range map[string]bool{"for good": false, "and comes again": true, "at the deadline": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				var followers []*Node
				for i := range size - 1 {
					followers = append(followers, w.start(w.config(i+1, size)))
				}
				if name == "at the deadline" {
					time.Sleep(time.Minute - 10*time.Millisecond)
				}
				first := w.config(0, size).Self
				records := []Record{first}
				var wires []*wire
				answer := func(link *wire) (got message) {
					require.ErrorIs(t, link.read(func(m message) error { got = m; return errEnded }), errEnded)
					return got
				}
				for i := range followers {
					conn, err := w.dial(t.Context(), "", addrOf(i+1))
					require.NoError(t, err)
					link := newWire(conn, &first)
					link.send(message{Type: hello, Record: &first})
					records, wires = append(records, *answer(link).Record), append(wires, link)
				}
				members, err := assign(records, size)
				require.NoError(t, err)
				r := Roster{Epoch: 1, Hash: hashMembers(members), Members: members}
				for _, link := range wires {
					link.send(message{Type: prepare, Epoch: 1, packed: r.pack()})
				}
				for _, link := range wires {
					require.Equal(t, ack, answer(link).Type)
				}
				for _, link := range wires {
					link.close()
				}
				begin := time.Now()
				nodes := followers
				if again {
					nodes = append(nodes, w.start(w.config(0, size)))
				}
				for i, g := range gatherAll(t.Context(), nodes) {
					var lost *LostError
					var ended *EndedError
					if i == len(followers) {
						require.ErrorAs(t, g.err, &ended)
						require.Equal(t, 75, ended.Outcome.Status)
						continue
					}
					require.ErrorAs(t, g.err, &lost)
					require.Contains(t, g.err.Error(), "it may have launched")
				}
				require.Less(t, time.Since(begin), 2*time.Second)
				w.close(nodes...)
			})
		})
	}
}
