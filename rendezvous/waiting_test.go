package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/joblog"
)

// uncounted replaces the number of dials and lookups, which depends on the back-off.
func uncounted(s string) string {
	return regexp.MustCompile(`\d+( to \d+)? (time|lookup)s`).ReplaceAllString(s, "N ${2}s")
}

// recorded keeps a log in the format of slog.TextHandler, with the time since the beginning.
type recorded struct {
	mu    sync.Mutex
	begin time.Time
	text  strings.Builder
}

func (l *recorded) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// take returns what was recorded since the last call.
func (l *recorded) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.text.String()
	l.text.Reset()
	return s
}

func recordLog(level slog.Level) (*recorded, *slog.Logger) {
	l := &recorded{begin: time.Now()}
	return l, slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{
		Level: level,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			switch a.Key {
			case slog.TimeKey:
				a.Value = slog.DurationValue(a.Value.Time().Sub(l.begin).Round(time.Second))
			case joblog.Text("").Key:
				return slog.Attr{}
			}
			return a
		},
	}))
}

// Rank 0 says every 10 s what it waits for, another rank only what is new.
func TestWaitingLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var nodes []*Node
		var logs []*recorded
		start := func(i int, timeout time.Duration) {
			cfg := w.config(i, 4)
			l, logger := recordLog(slog.LevelInfo)
			cfg.Timeout, cfg.Logger = timeout, logger
			logs, nodes = append(logs, l), append(nodes, w.start(cfg))
		}
		start(1, time.Hour)
		time.Sleep(5 * time.Second)
		require.Equal(t, `time=3s level=INFO msg="waiting for ranks" phase=gather present=1 size=4 `+
			`missing="worker-0 (10.0.0.0:12345: connection refused)" left=59m57s elapsed=3s`+"\n", logs[0].take())
		start(0, 10*time.Minute)
		time.Sleep(25 * time.Second)
		var zero strings.Builder
		for _, at := range []time.Duration{3, 13, 23} {
			fmt.Fprintf(&zero, `time=%vs level=INFO msg="waiting for ranks" phase=gather present=2 size=4 `+
				`missing="worker-[2-3] (connection refused)" left=%v elapsed=%vs`+"\n", int(at),
				10*time.Minute-at*time.Second, int(at))
		}
		require.Equal(t, zero.String(), logs[1].take())
		require.Equal(t, `time=13s level=INFO msg="waiting for ranks" phase=gather present=2 size=4 `+
			`missing="worker-[2-3] (connection refused)" left=59m47s elapsed=13s`+"\n", logs[0].take(), "once")
		time.Sleep(50 * time.Second)
		require.Equal(t, `time=1m13s level=INFO msg="waiting for ranks" phase=gather present=2 size=4 `+
			`missing="worker-[2-3] (connection refused)" left=58m47s elapsed=1m13s`+"\n", logs[0].take(), "later")
		logs[1].take()
		start(2, 0)
		time.Sleep(20 * time.Second)
		require.Contains(t, logs[0].take(), `present=3 size=4 missing="worker-3 (10.0.0.3:12345: connection refused)"`)
		require.Equal(t, `time=3s level=INFO msg="waiting for ranks" phase=gather present=3 size=4 `+
			`missing="worker-3 (10.0.0.3:12345: connection refused)" elapsed=3s`+"\n", logs[2].take(), "no deadline")
		w.close(nodes...)
	})
}

// What people read.
func TestWaitingText(t *testing.T) {
	for _, tt := range []struct {
		want string
		e    MissingError
		left string
	}{
		{"waiting for ranks: 3 of 4 present, 9m57s left; missing: worker-2 (never heard)",
			MissingError{Present: 3, Size: 4}, ", 9m57s left"},
		{"waiting for rank 0: worker-2 (never heard)", MissingError{Present: 1, Size: 4, alone: true}, ""},
		{"waiting for ranks, 3 s left; missing: worker-2 (never heard)", MissingError{Present: 1}, ", 3 s left"},
	} {
		require.Equal(t, tt.want, tt.e.awaited("worker-2 (never heard)", tt.left))
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l := &recorded{}
		cfg := w.config(0, 4)
		cfg.Logger = slog.New(joblog.Handler(l, joblog.FormatText, slog.LevelInfo))
		n := w.start(cfg)
		time.Sleep(5 * time.Second)
		require.Contains(t, l.take(), "waiting for ranks: 1 of 4 present, 57 s left; "+
			"missing: worker-[1-3] (connection refused)\n")
		w.close(n)
	})
}

// docs/log.md shows one record in every format.
func TestWaitingOnThePage(t *testing.T) {
	page, err := os.ReadFile("../docs/log.md")
	require.NoError(t, err)
	untimed := func(text string) string {
		return regexp.MustCompile(`(\d{4}-\d\d-\d\dT)?\d\d:\d\d:\d\d(\.\d+)?Z?`).ReplaceAllString(text, "TIME")
	}
	for _, format := range []joblog.Format{joblog.FormatText, joblog.FormatLogfmt, joblog.FormatJSON} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			l := &recorded{}
			var nodes []*Node
			for _, rank := range []int{0, 1, 3} {
				cfg := w.config(rank, 4)
				cfg.Timeout = 10 * time.Minute
				if rank == 0 {
					cfg.Logger = slog.New(joblog.Handler(l, format, slog.LevelInfo)).With("self", "worker-0")
				}
				nodes = append(nodes, w.start(cfg))
			}
			time.Sleep(5 * time.Second)
			require.Contains(t, untimed(string(page)), "\n    "+untimed(l.take())+"\n", format)
			w.close(nodes...)
		})
	}
}

// A rank behind a firewall that lets its own connections pass: rank 0 says so, and so does that rank.
func TestBothSidesOfAFirewall(t *testing.T) {
	for name, tt := range map[string]struct {
		udp    bool
		answer error
		text   string
		still  time.Duration // both machines stand still for this time over the deadline
	}{
		"dropped, with UDP":     {true, nil, "no answer", 0},
		"dropped, without UDP":  {false, nil, "no answer", 0},
		"rejected, with UDP":    {true, syscall.ECONNREFUSED, "connection refused", 0},
		"rejected, without UDP": {false, syscall.EHOSTUNREACH, "no route to host", 0},
		"machines that stand still over the deadline": {
			true, syscall.ECONNREFUSED, "connection refused", 2 * callerTime,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := newSimNet(rand.New(rand.NewPCG(1, 1)))
				if !tt.udp {
					net.udpLoss = 1
				}
				var nodes []*Node
				var ports []*Port
				var logs []*recorded
				defer func() {
					for _, n := range nodes {
						require.NoError(t, n.Close())
					}
					for _, p := range ports {
						require.NoError(t, p.Close())
					}
					net.wg.Wait()
					time.Sleep(time.Minute) // goroutines of memberlist end
				}()
				for rank := range 3 {
					cfg := scaleConfig(net, rank, 3)
					h := net.hosts[cfg.Self.Addr]
					ports = append(ports, net.port(h))
					l, logger := recordLog(slog.LevelInfo)
					cfg.Port, cfg.Logger, cfg.Timeout = ports[rank], logger, 2*time.Minute
					cfg.Key, cfg.Label = make([]byte, 32), "job"
					if rank == 0 {
						dial := cfg.Dial
						cfg.Dial = func(ctx context.Context, id string, a netip.AddrPort) (io.ReadWriteCloser, error) {
							if a == simAddr(2) && tt.answer != nil {
								return nil, tt.answer
							}
							return dial(ctx, id, a)
						}
					}
					if h.closed = rank == 2 && tt.answer == nil; h.closed {
						require.Nil(t, tt.answer)
					}
					logs, nodes = append(logs, l), append(nodes, startSim(t, net, cfg))
				}
				time.Sleep(35 * time.Second)
				want := fmt.Sprintf(`missing="worker-2 (it reaches rank 0, but rank 0 cannot connect to its `+
					`12345/tcp: %s)"`, tt.text)
				require.Contains(t, logs[0].take(), want)
				require.Contains(t, logs[1].take(), want)
				require.Contains(t, logs[2].take(), fmt.Sprintf(`missing="worker-0 (rank 0 cannot connect to `+
					`12345/tcp of this container: %s at %v; is the port open here?)"`, tt.text, simAddr(2)))
				gaveUp := 2 * time.Minute
				if tt.still > 0 {
					time.Sleep(80 * time.Second) // until 5 s before the deadline
					for _, n := range []*Node{nodes[0], nodes[2]} {
						go n.ask(func() { time.Sleep(tt.still) })
					}
					gaveUp += tt.still - 5*time.Second
				}
				_, err := nodes[0].Gather(t.Context())
				on := " on 12345/tcp"
				if errors.Is(tt.answer, syscall.EHOSTUNREACH) {
					on = ""
				}
				waited := joblog.Seconds(gaveUp)
				require.Equal(t, fmt.Sprintf("gave up after %s: 2 of 3 ranks are present; missing: worker-2 (%v): "+
					"it reaches rank 0, but rank 0 cannot connect to it: dialled N times in %s, last: %s%s",
					waited, simAddr(2).Addr(), waited, tt.text, on), uncounted(err.Error()))
				_, err = nodes[2].Gather(t.Context())
				require.Equal(t, fmt.Sprintf("gave up after %s: rank 0 is missing: worker-0: rank 0 cannot connect to "+
					"12345/tcp of this container: %s at %v; is the port open here?",
					waited, tt.text, simAddr(2)), err.Error())
			})
		})
	}
}

func TestDeadlineTexts(t *testing.T) {
	ranks := func(first, last int, tries ...*tried) (out []Missing) {
		for i := first; i <= last; i++ {
			m := Missing{Rank: i, Name: fmt.Sprintf("worker-%d", i), Reason: "never heard"}
			if len(tries) > 0 {
				m.tried = tries[(i-first)%len(tries)]
			}
			out = append(out, m)
		}
		return out
	}
	at := addrOf(4)
	const during = 10 * time.Minute
	for _, tt := range []struct {
		want    string
		missing []Missing
	}{
		{"worker-3 (10.0.0.4): dialled 12 times in 10m00s, last: connection refused on 12345/tcp",
			ranks(3, 3, &tried{at: at, dials: 12, during: during, port: 12345, last: "connection refused"})},
		{"worker-3 (10.0.0.4): dialled 1 time in 0.5 s, last: no route to host",
			ranks(3, 3, &tried{at: at, dials: 1, during: time.Second / 2, last: "no route to host"})},
		{"worker-5: name worker-5.job did not resolve in 57 lookups",
			ranks(5, 5, &tried{name: "worker-5.job", lookups: 57})},
		{"worker-5: name worker-5.job did not resolve in 57 lookups, last: server misbehaving",
			ranks(5, 5, &tried{name: "worker-5.job", lookups: 57, unnamed: "server misbehaving"})},
		{"worker-[5-8]: name did not resolve in 55 to 57 lookups each",
			ranks(5, 8, &tried{name: "a", lookups: 57}, &tried{name: "b", lookups: 55})},
		{"worker-[3-6]: dialled 11 to 12 times each in 10m00s, last: no answer on 12345/tcp",
			ranks(3, 6, &tried{at: at, dials: 12, during: during, port: 12345, last: "no answer"},
				&tried{at: addrOf(5), dials: 11, during: during, port: 12345, last: "no answer"})},
		{"worker-2 (10.0.0.4): it reaches rank 0, but rank 0 cannot connect to it: dialled 9 times in 10m00s, " +
			"last: no answer on 12345/tcp",
			ranks(2, 2, &tried{at: at, dials: 9, during: during, port: 12345, last: "no answer", calls: true})},
		{"worker-[1-2]: dialled 9 times each in 10m00s, last: connection refused",
			ranks(1, 2, &tried{at: at, dials: 9, during: during, port: 12345, last: "connection refused"},
				&tried{at: at, dials: 9, during: during, port: 12346, last: "connection refused"})},
		{"worker-[1-2]: never heard", ranks(1, 2)},
		{"worker-1: never heard; worker-2: name n did not resolve in 1 lookup",
			append(ranks(1, 1), ranks(2, 2, &tried{name: "n", lookups: 1})...)},
		{"10.0.0.4:12345: dialled 2 times in 10m00s, last: no answer on 12345/tcp", []Missing{{Rank: -1,
			Name: at.String(), tried: &tried{at: at, dials: 2, during: during, port: 12345, last: "no answer"}}}},
	} {
		require.Equal(t, tt.want, strings.Join(foldTried(tt.missing), "; "))
	}
}

// What was tried at the deadline, from the attempts themselves.
func TestTriedUntilTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		cfg := w.config(0, 6)
		cfg.Timeout = 10 * time.Minute
		cfg.Peers[4].Host, cfg.Peers[5].Host = "worker-4.job", "worker-5.job"
		cfg.Lookup = func(_ context.Context, host string) ([]netip.Addr, error) {
			if host == "worker-4.job" {
				return nil, &net.DNSError{Name: host, Err: "no such host", IsNotFound: true}
			}
			return nil, &net.DNSError{Name: host, Err: "server misbehaving"}
		}
		w.set(addrOf(2), nil, context.DeadlineExceeded)
		w.set(addrOf(3), nil, fmt.Errorf("worker-3 %w", ErrOtherSecret))
		n := w.start(cfg)
		time.AfterFunc(2*time.Second, func() { w.set(addrOf(3), nil, nil) })
		_, err := n.Gather(t.Context())
		require.Equal(t, "gave up after 10m00s: 1 of 6 ranks are present; missing:\n  "+
			"worker-1 (10.0.0.1): dialled N times in 10m00s, last: connection refused on 12345/tcp\n  "+
			"worker-2 (10.0.0.2): dialled N times in 10m00s, last: no answer on 12345/tcp\n  "+
			"worker-3 (10.0.0.3): dialled N times in 10m00s, last: worker-3 has another secret; "+
			"now connection refused on 12345/tcp\n  "+
			"worker-4: name worker-4.job did not resolve in N lookups\n  "+
			"worker-5: name worker-5.job did not resolve in N lookups, last: server misbehaving",
			uncounted(err.Error()))
		w.close(n)
	})
}

func TestArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var nodes []*Node
		start := func(i int, ran time.Duration) {
			cfg := w.config(i, 4)
			cfg.Started = time.Now().Add(-ran)
			nodes = append(nodes, w.start(cfg))
		}
		start(0, time.Hour)
		start(1, 0)
		time.Sleep(20 * time.Second)
		start(3, 0)
		time.Sleep(20 * time.Second)
		start(2, 2*time.Second)
		for i, g := range gatherAll(t.Context(), nodes) {
			require.NoError(t, g.err)
			for _, m := range g.roster.Members {
				require.Zero(t, m.Uptime)
			}
			a := g.roster.Arrival
			if i > 0 {
				require.Empty(t, a.Last)
				require.Zero(t, a.Started)
				require.WithinDuration(t, nodes[0].begin.Add(40*time.Second), nodes[i].begin.Add(a.Wait), time.Second)
				require.Equal(t, "all 4 present after 5 s", g.roster.Arrived(5*time.Second))
				continue
			}
			require.Equal(t, "worker-2", a.Last)
			require.InDelta(t, 38, a.Started.Seconds(), 0.1)
			require.InDelta(t, 40.5, a.Wait.Seconds(), 0.5)
		}
		w.close(nodes...)
	})
}

func TestArrivedText(t *testing.T) {
	r := Roster{Members: make([]Member, 64)}
	for _, tt := range []struct {
		want string
		a    Arrival
	}{
		{"all 64 present after 7.5 s", Arrival{}},
		{"all 64 present after 0.4 s", Arrival{Last: "worker-7", Wait: 420 * time.Millisecond}},
		{"all 64 present after 41 s; last: worker-7", Arrival{Last: "worker-7", Wait: 41 * time.Second}},
		{"all 64 present after 41 s; last: worker-7, 38 s of it before its container started",
			Arrival{Last: "worker-7", Wait: 41 * time.Second, Started: 38 * time.Second}},
	} {
		r.Arrival = tt.a
		require.Equal(t, tt.want, r.Arrived(7500*time.Millisecond))
	}
	require.Empty(t, Arrival{}.Attrs())
	require.Equal(t, []any{"last", "worker-7"}, Arrival{Last: "worker-7"}.Attrs())
	require.Equal(t, []any{"last", "worker-7", "last_started", 38 * time.Second},
		Arrival{Last: "worker-7", Started: 38 * time.Second}.Attrs())
}

func TestRepeatedRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, logger := recordLog(slog.LevelInfo)
		r := &repeats{log: logger}
		for range 95 { // one per second
			r.warn("a", "refused", "peer", "a")
			time.Sleep(time.Second)
		}
		r.warn("b", "refused", "peer", "b")
		r.end()
		require.Equal(t, `time=0s level=WARN msg=refused peer=a
time=1m0s level=WARN msg=refused peer=a count=61
time=1m35s level=WARN msg=refused peer=b
time=1m35s level=WARN msg=refused peer=a count=95
`, l.take())
		for i := range 1000 {
			r.warn(fmt.Sprint(i), "refused", "peer", i)
		}
		require.Equal(t, maxRepeats-2+1, strings.Count(l.take(), "\n"), "one line for the rest")
		r.end()
		require.Equal(t, `time=1m35s level=WARN msg="more peers were refused" last=refused peer=999 count=938`+"\n",
			l.take())
	})
}
