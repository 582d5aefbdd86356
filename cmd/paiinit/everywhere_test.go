package main

import (
	"bytes"
	"log/slog"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/envspec"
	"github.com/paiinit/paiinit/rendezvous"
)

func TestWarnServerPort(t *testing.T) {
	for name, tt := range map[string]struct {
		job   envspec.Job
		exec  string
		warns bool
	}{
		"every rank runs the command": {envspec.Job{Size: 3, Port: 23010, ServerPort: true}, execAll, true},
		"rank 0 runs a launcher":      {envspec.Job{Size: 3, Port: 23010, ServerPort: true}, execRank0, false},
		"a port of its own":           {envspec.Job{Size: 3, Port: 23011}, execAll, false},
		"a job of one opens no port":  {envspec.Job{Size: 1, Port: 23010, ServerPort: true}, execAll, false},
	} {
		var log bytes.Buffer
		c := &container{log: slog.New(slog.NewTextHandler(&log, nil)), identity: identity{job: tt.job}}
		c.exec = tt.exec
		c.warnServerPort()
		require.Equal(t, tt.warns, strings.Contains(log.String(), "level=WARN"), name)
		require.Equal(t, tt.warns, strings.Contains(log.String(), "port=23010"), name)
	}
}

func TestTaskPorts(t *testing.T) {
	list := members("a", "b")
	for i := range list {
		list[i].Role, list[i].Index, list[i].Task = "worker", i, 25000+i
	}
	port := taskPorts(list)
	require.Equal(t, []int{25000, 25001, 0, 0},
		[]int{port("worker", 0), port("worker", 1), port("worker", 2), port("ps", 0)})
}

func TestJudgement(t *testing.T) {
	begin := time.Now()
	at := func(ms int) time.Time { return begin.Add(time.Duration(ms) * time.Millisecond) }
	end := func(rank, status, ms int, stopped bool) rendezvous.End {
		o := rendezvous.Outcome{Status: status, Reason: "rank " + strconv.Itoa(rank)}
		name := "worker-" + strconv.Itoa(rank)
		return rendezvous.End{Rank: rank, Name: name, At: at(ms), Stopped: stopped, Outcome: o}
	}
	vague := func(e rendezvous.End, ms int) rendezvous.End {
		e.Error = time.Duration(ms) * time.Millisecond
		return e
	}
	said := func(e rendezvous.End, text string) rendezvous.End {
		e.Outcome.Reason += ": " + text
		return e
	}
	type ends = []rendezvous.End
	lost := []rendezvous.Loss{{Rank: 1, Name: "worker-1", Reason: "gone"}}
	stop := func(signal int) *rendezvous.Stop { return &rendezvous.Stop{Signal: signal, Reason: "by a person"} }
	also := func(list string) string { return "\nother commands failed at about the same time: " + list }
	for name, tt := range map[string]struct {
		j      judgement
		status int
		reason string
	}{
		"all well": {
			judgement{ends: ends{end(1, 0, 5, false), end(0, 0, 9, false)}},
			0, "the commands of all 2 ranks ended with status 0",
		},
		"the first by its own clock, not by arrival": {
			judgement{ordered: at(8), ends: ends{end(1, 1, 7, false), end(2, 3, 5, false), end(0, 143, 9, true)}},
			3, "rank 2" + also("rank 1 (worker-1) with 1 after 2ms"),
		},
		"what fails later is another story": {
			judgement{ordered: at(500), ends: ends{end(1, 1, 256, false), end(2, 3, 5, false), end(0, 2, 255, false)}},
			3, "rank 2" + also("rank 0 (worker-0) with 2 after 250ms"),
		},
		"equal times": {
			judgement{ordered: at(8), ends: ends{end(2, 3, 5, false), end(1, 1, 5, false)}},
			1, "rank 1" + also("rank 2 (worker-2) with 3 after 0s"),
		},
		"it failed just before it was told to end": {
			judgement{ordered: at(8), ends: ends{end(1, 1, 7, false), end(2, 3, 5, true), end(0, 143, 9, true)}},
			3, "rank 2" + also("rank 1 (worker-1) with 1 after 2ms"),
		},
		"aborted by a library at about the same time": {
			judgement{ordered: at(20), ends: ends{
				vague(end(1, 134, 5, false), 2), vague(end(2, 3, 7, false), 1), end(0, 1, 8, false),
			}},
			3, "rank 2" + also("rank 1 (worker-1) with 134 after 0s, rank 0 (worker-0) with 1 after 1ms"),
		},
		"aborted clearly before": {
			judgement{ordered: at(60), ends: ends{vague(end(1, 134, 4, false), 1), vague(end(2, 3, 57, false), 1)}},
			134, "rank 1" + also("rank 2 (worker-2) with 3 after 53ms"),
		},
		"several ended alike, and were noticed before the rank that ended otherwise": {
			judgement{ordered: at(5), ends: ends{end(0, 1, 4, false), end(1, 1, 5, false), end(2, 3, 7, false)}},
			3, "rank 2" + also("rank 0 (worker-0) with 1 after 0s, rank 1 (worker-1) with 1 after 0s"),
		},
		"it complains about a connection, and was noticed before": {
			judgement{ordered: at(5), ends: ends{
				said(end(0, 1, 4, false), "Connection reset by peer"), end(1, 1, 5, false),
			}},
			1, "rank 1" + also("rank 0 (worker-0) with 1 after 0s"),
		},
		"it complains about a connection, and the cause was noticed much later": {
			judgement{ordered: at(5), ends: ends{
				said(end(0, 1, 4, false), "Connection closed by peer"), end(1, 3, 65, false),
			}},
			3, "rank 1" + also("rank 0 (worker-0) with 1 after 0s"),
		},
		"it complains about a connection, and what was noticed later may follow from it": {
			judgement{ordered: at(5), ends: ends{
				said(end(0, 1, 4, false), "Connection closed by peer"), end(1, 134, 65, false),
			}},
			1, "rank 0: Connection closed by peer" + also("rank 1 (worker-1) with 134 after 61ms"),
		},
		"it complains about a connection, and fails long before another": {
			judgement{ordered: at(500), ends: ends{
				said(end(0, 1, 4, false), "Connection closed by peer"), end(1, 3, 260, false),
			}},
			1, "rank 0: Connection closed by peer",
		},
		"all complain": {
			judgement{ordered: at(5), ends: ends{
				said(end(0, 1, 4, false), "Broken pipe"), said(end(1, 1, 5, false), "broken pipe"),
			}},
			1, "rank 0: Broken pipe" + also("rank 1 (worker-1) with 1 after 1ms"),
		},
		"stopped": {
			judgement{stop: stop(15), ordered: at(2), ends: ends{end(1, 0, 1, false), end(0, 143, 9, true)}},
			143, "by a person; rank 0",
		},
		"two at the same moment, by rank": {
			judgement{ordered: at(20), ends: ends{end(2, 3, 5, false), end(0, 143, 9, true), end(1, 4, 5, false)}},
			4, "rank 1" + also("rank 2 (worker-2) with 3 after 0s, rank 0 (worker-0) with 143 after 4ms"),
		},
		"stopped, and all saved their work": {
			judgement{stop: stop(15), ordered: at(2), ends: ends{end(1, 0, 9, true), end(0, 0, 9, true)}},
			0, "by a person; the commands of all ranks ended with status 0",
		},
		"stopped, and a command saved its work with a status of its own": {
			judgement{stop: stop(2), ordered: at(2), ends: ends{end(1, 5, 9, true), end(0, 0, 9, false)}},
			5, "by a person; rank 1",
		},
		"stopped, and the first rank that ended otherwise": {
			judgement{stop: stop(15), ordered: at(2), ends: ends{
				end(3, 6, 4, true), end(1, 5, 9, true), end(2, 7, 5, true), end(0, 0, 9, true)}},
			5, "by a person; rank 1",
		},
		"stopped, and nothing was heard": {judgement{stop: stop(2), ordered: at(2)}, 130, "by a person"},
		"stopped without a signal":       {judgement{stop: stop(0), ordered: at(2)}, 143, "by a person"},
		"a rank was lost": {
			judgement{lost: lost, ordered: at(3), ends: ends{end(0, 1, 9, false)}},
			75, "rank 1 (worker-1) was lost: gone; rank 0",
		},
		"a rank was lost, and the others saved their work": {
			judgement{lost: lost, ordered: at(3), ends: ends{end(0, 0, 9, true)}},
			75, "rank 1 (worker-1) was lost: gone",
		},
		"told to end for no reason that is known": {
			judgement{ordered: at(3), ends: ends{end(0, 0, 9, true)}}, 75, "not every rank told how its command ended",
		},
	} {
		t.Run(name, func(t *testing.T) {
			tt.j.size = max(2, len(tt.j.ends))
			for rank := range tt.j.size {
				record := rendezvous.Record{Role: "worker", Rank: rank}
				m := rendezvous.Member{Record: record, Alias: "worker-" + strconv.Itoa(rank)}
				tt.j.needed = append(tt.j.needed, m)
			}
			require.Equal(t, rendezvous.Outcome{Status: tt.status, Reason: tt.reason}, tt.j.outcome())
		})
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
