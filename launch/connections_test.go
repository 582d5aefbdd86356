package launch

import (
	"bytes"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestConnections(t *testing.T) {
	const head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	row := func(local, remote, state, inode string) string {
		return "   0: " + local + " " + remote + " " + state +
			" 00000000:00000000 00:00000000 00000000     0        0 " + inode + " 1 0000000000000000 20 4 30 10 -1\n"
	}
	link := func(to string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(to), Mode: fs.ModeSymlink} }
	files := fstest.MapFS{
		"10/fd/0": link("/dev/null"), "10/fd/3": link("socket:[300]"), "10/fd/4": link("socket:[301]"),
		"10/fd/5": link("socket:[302]"), "10/fd/6": link("socket:[303]"), "10/fd/7": link("socket:[304]"),
		"10/net/tcp": {Data: []byte(head +
			row("0100000A:A0F1", "0200000A:8235", "01", "300") + // 10.0.0.1:41201 to 10.0.0.2
			row("00000000:A0F1", "00000000:0000", "0A", "301") + // listens at 41201
			row("0100007F:A0F2", "0100007F:8235", "01", "302") + // to this host
			row("0100007F:A0F3", "00000000:0000", "0A", "303") + // listens at this host only
			row("0100000A:3039", "0300000A:8235", "01", "999"))}, // of another process
		"10/net/tcp6": {Data: []byte(head +
			row("0000000000000000FFFF00000100000A:A0F1", "0000000000000000FFFF00000300000A:8235", "01", "304") +
			row("B80D0120000000000000000001000000:A0F1", "B80D0120000000000000000002000000:8235", "02", "304"))},
		"11/fd/3":    link("socket:[301]"),
		"11/net/tcp": {Data: []byte(head + row("00000000:A0F1", "00000000:0000", "0A", "301"))},
	}
	require.Equal(t, Connections{Known: true, Open: 2, Listening: []int{41201}}, connections(files, []int{10, 11, 12}))
	require.Equal(t, Connections{}, connections(files, []int{12}))
	require.Equal(t, "[2001:db8::1]:41201", tableAddr("B80D0120000000000000000001000000:A0F1").String())
	require.False(t, tableAddr("x").IsValid())
	require.True(t, ReadConnections([]int{os.Getpid()}).Known)
}

// A launcher whose daemons have been started and have not connected to it is a warning after 15 s. Nothing else is.
func TestSilentDaemons(t *testing.T) {
	launcher := Process{PID: 10, Name: "mpirun", State: 'S', Started: time.Minute}
	rank := Process{PID: 20, Parent: 10, Name: "python3", State: 'S', Variables: func() map[string]bool {
		return map[string]bool{"OMPI_COMM_WORLD_RANK": true}
	}}
	none := Connections{Known: true, Listening: []int{41201}}
	begin := func(j *job) {
		j.run(launcher)
		j.Begun("b", anOrted)
		j.Begun("c", anOrted)
	}
	for name, tt := range map[string]struct {
		line   string
		found  Connections
		happen func(*job)
		want   string // times and attributes of warnings
	}{
		"a firewall": {"mpirun x", none, begin, "15s daemons=2 connected=0 ports=41201"},
		"a firewall, in a script": {
			"sh x", none, func(j *job) { time.Sleep(time.Minute); begin(j) }, "1m15s daemons=2 connected=0 ports=41201",
		},
		"a firewall that was found": {
			"mpirun x", none, func(j *job) { j.Blocked("c gets no packets"); begin(j) },
			`15s daemons=2 connected=0 ports=41201 err="c gets no packets"`,
		},
		"of one host": {
			"mpirun x", Connections{Known: true, Open: 1}, begin, "15s daemons=2 connected=1",
		},
		"the latest daemon counts": {
			"mpirun x", none, func(j *job) { begin(j); time.Sleep(9 * time.Second); j.Begun("d", anOrted) },
			"24s daemons=3 connected=0 ports=41201",
		},
		"only once": {
			"sh x", none, func(j *job) { begin(j); time.Sleep(time.Minute); begin(j) },
			"15s daemons=2 connected=0 ports=41201",
		},
		"daemons that leave their session": {
			"mpirun x", none, func(j *job) {
				j.run(launcher)
				j.Begun("b", `prted --daemonize`)
				j.Ended("b", `prted --daemonize`, 0, 0)
			}, "15s daemons=0 connected=0 ports=41201",
		},
		"all connected": {"mpirun x", Connections{Known: true, Open: 2}, begin, ""},
		"ranks run": {
			"mpirun x", Connections{Known: true, Open: 1}, func(j *job) { begin(j); j.run(launcher, rank) }, "",
		},
		"unknown connections": {"mpirun x", Connections{}, begin, ""},
		"a plain command": {
			"sleep 60", none, func(j *job) { j.run(Process{PID: 10, Name: "sleep", State: 'S'}) }, "",
		},
		"a script that copies its data": {
			"sh x", none, func(j *job) {
				j.run(Process{PID: 10, Name: "rsync", State: 'S'})
				j.Begun("b", "rsync --server")
			}, "",
		},
		"the launcher has ended": {"sh x", none, func(j *job) { begin(j); time.Sleep(time.Second); j.run() }, ""},
		"the daemons have ended": {
			"sh x", none, func(j *job) { j.run(launcher); j.Begun("b", aProxy); j.Ended("b", aProxy, 0, 0) }, "",
		},
		"a later launcher": {
			"sh x", none, func(j *job) {
				begin(j)
				time.Sleep(time.Second)
				late := launcher
				late.Started = time.Hour + 5*time.Second
				j.run(late)
			}, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			supervisedWith(t, tt.line, func(s *Supervisor) {
				began := time.Now()
				s.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{
					Level: slog.LevelWarn,
					ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
						switch a.Key {
						case slog.TimeKey:
							return slog.String("", time.Since(began).String())
						case "daemons", "connected", "ports", "err":
							return a
						}
						return slog.Attr{}
					},
				}))
				s.Connections = func(pids []int) Connections {
					require.Equal(t, []int{10}, pids)
					return tt.found
				}
			}, func(j *job) {
				tt.happen(j)
				time.Sleep(5 * time.Minute)
				synctest.Wait()
				j.end()
			})
			require.Equal(t, tt.want, strings.TrimPrefix(strings.TrimSpace(log.String()), `""=`))
		})
	}
}
