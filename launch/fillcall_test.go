package launch_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/launch"
)

func TestLacksNetworkOption(t *testing.T) {
	name, how := filepath.Join(t.TempDir(), "horovodrun"), launch.FillNamed("horovodrun")
	old := func(path string) bool {
		c, ok := how.Call([]string{"x"}, path, nil)
		require.True(t, ok)
		return c.Old
	}
	for text, want := range map[string]bool{
		"from horovod.run import run\n":                                   true,  // 0.18
		"from horovod.run.run import run_commandline\n":                   true,  // 0.19.1
		"from horovod.run.runner import run_commandline\n":                false, // 0.19.5
		"import sys\nfrom horovod.runner.launch import run_commandline\n": false,
		"#!/bin/sh\n": false,
	} {
		require.NoError(t, os.WriteFile(name, []byte(text), 0o755))
		require.Equal(t, want, old(name), text)
	}
	require.False(t, old(name+"x"))
}

func TestFillCall(t *testing.T) {
	for line, tt := range map[string]struct{ environ, want, network string }{
		"-np 4 python x.py -np 3": {"", "-np 4 COMMAND", ""},
		"x":                       {"HOROVOD_GLOO_IFACE=eth1", "COMMAND", "eth1"},
		"-H a:1 x":                {"HOROVOD_GLOO_IFACE=eth1 NCCL_SOCKET_IFNAME=ib0", "-H a:1 COMMAND", "ib0"},
		"--verbose x":             {"HOROVOD_GLOO_IFACE=eth1 NCCL_SOCKET_IFNAME=", "--verbose COMMAND", "eth1"},
		"--version":               {"", "", ""},
		"-np 4":                   {"", "", ""},
		"-np 5 x":                 {"OMPI_COMM_WORLD_RANK=0", "", ""},
	} {
		args := strings.Fields(line)
		c, ok := launch.FillNamed("horovodrun").Call(args, "/none", strings.Fields(tt.environ))
		require.Equal(t, tt.want != "", ok, line)
		require.Equal(t, tt.want, strings.Join(c.Args, " "), line)
		require.Equal(t, tt.network, c.Network, line)
		require.Equal(t, strings.Fields(line), args)
	}
}

func TestRequestSlots(t *testing.T) {
	dir := t.TempDir()
	list := filepath.Join(dir, "list")
	require.NoError(t, os.WriteFile(list, nil, 0o644))
	all := map[string]int{"w-0": 2, "w-1": 2, "w-2": 2}
	for name, tt := range map[string]struct {
		r    launch.Request
		want string
	}{
		"all hosts":         {launch.Request{}, "map[w-0:2 w-1:2 w-2:2]"},
		"but one":           {launch.Request{Without: []string{"b", "unknown"}}, "map[w-0:2 w-2:2]"},
		"named":             {launch.Request{Hosts: []string{"b", "c", "b"}, Hostfile: list}, "map[w-1:2 w-2:1]"},
		"none named":        {launch.Request{Hosts: []string{}}, "map[]"},
		"an unknown name":   {launch.Request{Hosts: []string{"b", "x"}}, "x is no container of this job"},
		"a list":            {launch.Request{Hostfile: list, Without: []string{"a"}}, "map[w-2:3]"},
		"an optional list":  {launch.Request{Hostfile: list, HostfileOptional: true}, "map[w-0:2 w-2:3]"},
		"no list":           {launch.Request{Hostfile: list + "x"}, "no such list"},
		"no list is needed": {launch.Request{Hostfile: list + "x", HostfileOptional: true}, "map[w-0:2 w-1:2 w-2:2]"},
		"one excluded":      {launch.Request{Hosts: []string{"a", "b"}, Without: []string{"a"}}, "map[w-1:1]"},
	} {
		t.Run(name, func(t *testing.T) {
			find := func(host string) (string, bool) {
				alias, ok := map[string]string{"a": "w-0", "b": "w-1", "c": "w-2"}[host]
				return alias, ok
			}
			read := func(file string) ([]launch.HostSlots, error) {
				if file != list {
					return nil, errors.New("no such list")
				}
				return []launch.HostSlots{{Name: "a", Slots: 2}, {Name: "c", Slots: 1}, {Name: "c", Slots: 2}}, nil
			}
			got, err := tt.r.Slots(all, find, read)
			if err != nil {
				require.EqualError(t, err, tt.want)
				return
			}
			require.Equal(t, tt.want, fmt.Sprint(got))
			require.Len(t, all, 3, "not modified")
		})
	}
}
