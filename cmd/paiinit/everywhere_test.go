package main

import (
	"bytes"
	"log/slog"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/envspec"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/rendezvous"
	"github.com/paiinit/paiinit/statedir"
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
		c := &container{identity: identity{log: slog.New(slog.NewTextHandler(&log, nil)), job: tt.job}}
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
	port := (&rendezvous.Roster{Members: list}).TaskPort
	require.Equal(t, []int{25000, 25001, 0, 0},
		[]int{port("worker", 0), port("worker", 1), port("worker", 2), port("ps", 0)})
}

// A driver beside the head of a cluster gets the addresses, and not the rank of a framework; nor do the tasks of the
// head, which inherit the environment of --first.
func TestTaskOfACluster(t *testing.T) {
	for line, rank := range map[string]bool{
		"python3 train.py":      true,
		"python3 train.py ray":  true,
		"vllm serve m":          false,
		"ray start --block":     false,
		"--first x python3 a":   true,
		"--first=ray python3 a": false,
	} {
		words := append([]string{"--exec", "leader"}, strings.Fields(line)...)
		s := parse(t, nil, func(string) bool { return false }, words...)
		id := identity{settings: s, nonce: "0", state: new(statedir.Dir)}
		r := rendezvous.Roster{Members: membersOf("worker", "worker")}
		for i := range r.Members {
			r.Members[i].Nonce = strconv.Itoa(i)
			r.Members[i].Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 12345)
		}
		vars := make(map[string]string)
		for _, v := range launch.TaskEnvironment((&agreement{identity: &id, roster: r}).tasks()) {
			vars[v.Name] = v.Value
		}
		for _, name := range []string{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TF_CONFIG"} {
			require.Equal(t, rank, vars[name] != "", "%s: %s", line, name)
		}
		require.Equal(t, "10.0.0.0", vars["VLLM_HOST_IP"])
	}
}
