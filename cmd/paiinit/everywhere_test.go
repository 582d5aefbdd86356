package main

import (
	"bytes"
	"log/slog"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/envspec"
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
		c := &container{log: slog.New(slog.NewTextHandler(&log, nil)), job: tt.job}
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
