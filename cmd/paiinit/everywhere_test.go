package main

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

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
