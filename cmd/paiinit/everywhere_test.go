package main

import (
	"log/slog"
	"math/rand/v2"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/rendezvous"
)

func TestJudgement(t *testing.T) {
	end := func(rank, status int, after time.Duration, stopped bool) rendezvous.End {
		return rendezvous.End{Rank: rank, After: after, Stopped: stopped, Outcome: rendezvous.Outcome{Status: status, Reason: "rank " + strconv.Itoa(rank)}}
	}
	for name, tt := range map[string]struct {
		j    judgement
		want rendezvous.Outcome
	}{
		"all well": {
			judgement{ends: []rendezvous.End{end(1, 0, 5, false), end(0, 0, 9, false)}},
			rendezvous.Outcome{Reason: "the commands of all 2 ranks ended with status 0"},
		},
		"the first by its own clock, not by arrival": {
			judgement{ends: []rendezvous.End{end(1, 1, 7, false), end(2, 3, 5, false), end(0, 143, 1, true)}},
			rendezvous.Outcome{Status: 3, Reason: "rank 2"},
		},
		"equal times": {
			judgement{ends: []rendezvous.End{end(2, 3, 5, false), end(1, 1, 5, false)}},
			rendezvous.Outcome{Status: 1, Reason: "rank 1"},
		},
		"stopped": {
			judgement{stop: &rendezvous.Stop{Signal: 15, Reason: "by a person"}, ends: []rendezvous.End{end(1, 0, 1, false), end(0, 143, 9, true)}},
			rendezvous.Outcome{Status: 143, Reason: "by a person; rank 0"},
		},
		"stopped, and a command saved its work with a status of its own": {
			judgement{stop: &rendezvous.Stop{Signal: 2, Reason: "by a person"}, ends: []rendezvous.End{end(1, 5, 9, true), end(0, 0, 9, false)}},
			rendezvous.Outcome{Status: 5, Reason: "by a person; rank 1"},
		},
		"stopped when all had ended": {
			judgement{stop: &rendezvous.Stop{Signal: 2, Reason: "by a person"}},
			rendezvous.Outcome{Status: 130, Reason: "by a person"},
		},
		"stopped without a signal": {
			judgement{stop: &rendezvous.Stop{Reason: "wish"}},
			rendezvous.Outcome{Status: 143, Reason: "wish"},
		},
		"a rank was lost": {
			judgement{lost: []rendezvous.Loss{{Rank: 1, Name: "worker-1", Reason: "gone"}}, ends: []rendezvous.End{end(0, 1, 9, false)}},
			rendezvous.Outcome{Status: 75, Reason: "rank 1 (worker-1) was lost: gone; rank 0"},
		},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tt.want, tt.j.outcome()) })
	}
}

func TestHeldPort(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	p := holdPort(rand.IntN, log)
	require.NotNil(t, p)
	require.GreaterOrEqual(t, p.port(), 20000)
	require.Less(t, p.port(), 30000)
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port()))
	_, err := net.Listen("tcp", addr)
	require.Error(t, err, "nobody else gets it")
	_, err = net.Dial("tcp", addr)
	require.Error(t, err, "and nobody answers")

	offers := []int{p.port() - 20000, p.port() - 20000, 9999}
	second := holdPort(func(int) int { n := offers[0]; offers = offers[1:]; return n }, log)
	require.Equal(t, 29999, second.port(), "a port that is taken is passed over")
	second.release()

	p.release()
	p.release()
	ln, err := net.Listen("tcp", addr)
	require.NoError(t, err)
	require.NoError(t, ln.Close())
	require.Nil(t, holdPort(func(int) int { return 1 << 17 }, log), "what the kernel refuses is no port")
	var none *heldPort
	require.Zero(t, none.port())
	none.release()
}
