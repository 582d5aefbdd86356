package main

import (
	"bytes"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/localapi"
	"github.com/paiinit/paiinit/rendezvous"
	"github.com/paiinit/paiinit/statedir"
)

// newReached returns rank 0 of a job of three ranks with two slots each.
func newReached(t *testing.T, command ...string) (*container, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	c := &container{
		identity: identity{
			log: slog.New(slog.NewTextHandler(&log, nil)), state: &statedir.Dir{Path: "/s"},
			settings: settings{command: command},
		},
	}
	c.followLaunchers()
	c.job.Alias = "worker-0"
	var roster rendezvous.Roster
	for i := range 3 {
		roster.Members = append(roster.Members, rendezvous.Member{
			Alias: "worker-" + strconv.Itoa(i),
			Record: rendezvous.Record{
				Slots: 2, Rank: i, Host: "node-" + strconv.Itoa(i), Nonce: strconv.Itoa(i), Network: "eth0",
				Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 1),
			},
		})
	}
	c.agree(roster, launch.Fabric{})
	return c, &log
}

func TestReached(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "two"), []byte("node-0 slots=2\nnode-1 slots=2\n"), 0o644))
	for name, tt := range map[string]struct {
		line   string
		reach  []string // host and command
		status int
		says   string // in the reason, else in the log
	}{
		"horovodrun, all": {
			"horovodrun -np 6 -H node-0:2,node-1:2,node-2:2 x",
			[]string{"worker-1 env A=B x", "worker-2 env A=B x"}, 0, "",
		},
		"horovodrun, probed only": {
			"horovodrun -np 6 -H node-0:2,node-1:2,node-2:2 x", []string{"worker-1 true", "worker-2 true"}, 69,
			"asked for at least 3 and started on at most 1",
		},
		"horovodrun, fits on one": {"horovodrun -np 2 -H node-0:2,node-1:2 x", nil, 0, ""},
		"horovodrun, a file":      {"horovodrun -np 4 --hostfile two x", nil, 69, "asked for at least 2"},
		"horovodrun, no hosts": {
			"/opt/horovodrun -np 4 x", nil, 69,
			"bypassed /s/bin/horovodrun, which adds the hosts; --hostfile $PAIINIT_HOSTFILE",
		},
		"horovodrun, few, around": {"python3 -m horovod.runner.launch -np 2 x", nil, 0, "a launcher has no host list"},
		"horovodrun, elastic":     {"horovodrun -np 2 --min-np 1 x", nil, 0, "hint=\"--hostfile $PAIINIT_HOSTFILE"},
		"horovodrun, check":       {"horovodrun --check-build", nil, 0, "hint=\"--hostfile $PAIINIT_HOSTFILE"},
		"another host's launcher": {"mpirun -H node-1:2 x", nil, 69, "asked for at least 1 and started on at most 0"},
		"deepspeed, all":          {"deepspeed -H two x", []string{"worker-0 cd /; x", "worker-1 cd /; x"}, 0, ""},
		"deepspeed, one": {
			"deepspeed -H two x", []string{"worker-0 hostname -I"}, 69,
			"deepspeed ended with status 0, but did not use the hosts",
		},
		"deepspeed, asked for one": {"deepspeed -H two --num_nodes 1 x", nil, 0, ""},
		"deepspeed, not the other": {"deepspeed -H two --exclude node-1 x", nil, 0, ""},
		"deepspeed, only another":  {"deepspeed -H two --include node-1 x", nil, 69, "started on at most 0"},
		"a program":                {"python x", nil, 0, "with --exec all every rank runs the command"},
	} {
		t.Run(name, func(t *testing.T) {
			line := strings.Fields(tt.line)
			c, log := newReached(t, line...)
			c.asks().Note(t.Context(), line, dir)
			c.asks().Note(t.Context(), line, dir) // a second note changes nothing
			for _, r := range tt.reach {
				host, command, _ := strings.Cut(r, " ")
				c.sessions().Begun(host, command)
			}
			s := c.supervisor(c.agreed(), nil, new(launch.Stopper))
			o := s.Reached()
			if tt.status == 0 {
				require.Nil(t, o)
				require.Contains(t, log.String(), tt.says)
				if tt.says == "" {
					require.Empty(t, log.String())
				}
				return
			}
			require.Equal(t, tt.status, o.Status)
			require.Contains(t, o.Reason, tt.says)
			require.NotContains(t, log.String(), "every rank runs the command")
			s.AllowPartial = true
			require.Nil(t, s.Reached())
		})
	}
}

func TestEmptyHostfileVariable(t *testing.T) {
	for line, warns := range map[string]bool{
		"mpirun -np 16 --hostfile -bind-to none -map-by slot python train.py": true,
		"mpirun --hostfile -np 4 -x PATH python train.py":                     true,
		"mpirun -np 16 --hostfile /run/h -bind-to none python train.py":       false,
		"mpirun -np 16 -bind-to none python train.py --hostfile -a b":         false,
	} {
		c, log := newReached(t)
		c.asks().Note(t.Context(), strings.Fields(line), "/")
		require.Equal(t, warns, strings.Contains(log.String(), "reads an option as its host list"), line)
		require.Equal(t, warns, strings.Contains(log.String(), "write AZUREML_MPI_HOSTFILE without $"), line)
	}
}

func TestAnswerHorovodrun(t *testing.T) {
	for name, tt := range map[string]struct {
		call localapi.FillCall
		set  func(*container)
		want string
	}{
		"all": {
			localapi.FillCall{Args: []string{"-np", "6", "x"}}, nil,
			"-H node-0:2,node-1:2,node-2:2 --network-interface eth0",
		},
		"some": {
			localapi.FillCall{Args: []string{"-np", "3", "x"}}, nil,
			"-H node-0:2,node-1:1 --network-interface eth0",
		},
		"too many": {
			localapi.FillCall{Args: []string{"-np", "9", "x"}}, nil,
			"-H node-0:2,node-1:2,node-2:2 --network-interface eth0",
		},
		"no number": {
			localapi.FillCall{Args: []string{"x"}}, nil, "-np 6 -H node-0:2,node-1:2,node-2:2 --network-interface eth0",
		},
		"own host only": {localapi.FillCall{Args: []string{"-np", "1", "x"}}, nil, "-H node-0:1"},
		"own network": {
			localapi.FillCall{Args: []string{"-np", "3", "--network-interfaces", "ib0", "x"}}, nil,
			"-H node-0:2,node-1:1",
		},
		"variable": {localapi.FillCall{Args: []string{"-np", "3", "x"}, Network: "ib0"}, nil, "-H node-0:2,node-1:1"},
		"our variable": {
			localapi.FillCall{Args: []string{"-np", "3", "x"}, Network: "eth0"}, nil,
			"-H node-0:2,node-1:1 --network-interface eth0",
		},
		"an old version": {localapi.FillCall{Args: []string{"-np", "3", "x"}, Old: true}, nil, "-H node-0:2,node-1:1"},
		"unknown option": {
			localapi.FillCall{Args: []string{"--new", "-np", "3", "x"}}, nil,
			"-H node-0:2,node-1:2,node-2:2 --network-interface eth0",
		},
		"hosts":      {localapi.FillCall{Args: []string{"-np", "3", "-H", "a:3", "x"}}, nil, ""},
		"version":    {localapi.FillCall{Args: []string{"--version"}}, nil, ""},
		"--exec all": {localapi.FillCall{Args: []string{"-np", "3", "x"}}, func(c *container) { c.exec = execAll }, ""},
		"before the commit": {
			localapi.FillCall{Args: []string{"-np", "3", "x"}},
			func(c *container) { c.agree(rendezvous.Roster{}, launch.Fabric{}) }, "",
		},
		"different networks": {
			localapi.FillCall{Args: []string{"-np", "3", "x"}},
			func(c *container) { c.agreed().roster.Members[2].Network = "eth1" }, "-H node-0:2,node-1:1",
		},
		"an unknown network": {
			localapi.FillCall{Args: []string{"-np", "3", "x"}},
			func(c *container) { c.agreed().roster.Members[2].Network = "" }, "-H node-0:2,node-1:1",
		},
		"IPv6": {
			localapi.FillCall{Args: []string{"-np", "3", "x"}},
			func(c *container) { c.agreed().roster.Members[0].Addr = netip.MustParseAddrPort("[2001:db8::1]:1") },
			"-H node-0:2,node-1:1",
		},
		"a name for a shell": {
			localapi.FillCall{Args: []string{"-np", "3", "x"}}, func(c *container) { inAll(c, "a;b") },
			"-H node-0:2,node-1:1",
		},
		"a launcher by itself": {
			localapi.FillCall{Args: []string{"-np", "3", "x"}},
			func(c *container) { c.agreed().roster.Members[0].Slots = 0 },
			"-H node-1:2,node-2:1 --network-interface eth0",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := newReached(t, "horovodrun")
			c.nonce = "0"
			if tt.set != nil {
				tt.set(c)
			}
			add, ok := answers{c}.Fill(t.Context(), "horovodrun", tt.call)
			require.True(t, ok)
			require.Equal(t, tt.want, strings.Join(add, " "))
		})
	}
}

func inAll(c *container, network string) {
	for i := range c.agreed().roster.Members {
		c.agreed().roster.Members[i].Network = network
	}
}
