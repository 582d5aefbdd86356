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
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/internal/proc"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/localapi"
	"github.com/paiinit/paiinit/rendezvous"
	"github.com/paiinit/paiinit/statedir"
)

func TestLaunchersBelow(t *testing.T) {
	f := newFakeProc(7)
	add := func(pid, parent int, line string, environ ...string) {
		f.add(pid, parent, pid, "x", environ...)
		f.MapFS[strconv.Itoa(pid)+"/cmdline"] = &fstest.MapFile{
			Data: []byte(strings.ReplaceAll(line, " ", "\x00") + "\x00"),
		}
	}
	add(20, 7, "sh train.sh")
	add(21, 20, "/usr/bin/python3 /usr/bin/horovodrun -np 4 x")
	add(22, 21, "mpirun -np 4 x") // horovodrun's own
	add(23, 20, "bash -lc y")
	add(24, 23, "mpirun -np 2 y")
	add(25, 24, "python3 y")
	add(26, 25, "mpirun -np 1 z") // of a rank
	add(30, 7, "mpirun w", "SSH_CONNECTION=1 2 3 4")
	add(40, 1, "mpirun v") // left the command's tree
	all := proc.ReadAll(f, 7)
	require.Equal(t, []int{21, 24}, launchersBelow(f, all, 7))
	require.Empty(t, launchersBelow(f, nil, 7))
}

// newReached is rank 0 of a job of three ranks with two slots each.
func newReached(t *testing.T, command ...string) (*container, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	c := &container{
		log: slog.New(slog.NewTextHandler(&log, nil)), daemons: newDaemons(), state: &statedir.Dir{Path: "/s"},
		identity: identity{settings: settings{command: command}},
	}
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
			"asked for 3 at least and can have started on 1",
		},
		"horovodrun, fits on one": {"horovodrun -np 2 -H node-0:2,node-1:2 x", nil, 0, ""},
		"horovodrun, a file":      {"horovodrun -np 4 --hostfile two x", nil, 69, "asked for 2 at least"},
		"horovodrun, no hosts": {
			"/opt/horovodrun -np 4 x", nil, 69,
			"has gone around /s/bin/horovodrun, which adds the hosts; --hostfile $PAIINIT_HOSTFILE",
		},
		"horovodrun, few, around": {"python3 -m horovod.runner.launch -np 2 x", nil, 0, "a launcher has no host list"},
		"horovodrun, elastic":     {"horovodrun -np 2 --min-np 1 x", nil, 0, "hint=\"--hostfile $PAIINIT_HOSTFILE"},
		"horovodrun, check":       {"horovodrun --check-build", nil, 0, "hint=\"--hostfile $PAIINIT_HOSTFILE"},
		"another host's launcher": {"mpirun -H node-1:2 x", nil, 69, "asked for 1 at least and can have started on 0"},
		"deepspeed, all":          {"deepspeed -H two x", []string{"worker-0 cd /; x", "worker-1 cd /; x"}, 0, ""},
		"deepspeed, one": {
			"deepspeed -H two x", []string{"worker-0 hostname -I"}, 69,
			"deepspeed ended with status 0, but did not use the hosts",
		},
		"deepspeed, asked for one": {"deepspeed -H two --num_nodes 1 x", nil, 0, ""},
		"deepspeed, not the other": {"deepspeed -H two --exclude node-1 x", nil, 0, ""},
		"deepspeed, only another":  {"deepspeed -H two --include node-1 x", nil, 69, "can have started on 0"},
		"a program":                {"python x", nil, 0, "with --exec all every rank runs the command"},
	} {
		t.Run(name, func(t *testing.T) {
			line := strings.Fields(tt.line)
			c, log := newReached(t, line...)
			c.noteLauncher(t.Context(), line, dir)
			c.noteLauncher(t.Context(), line, dir) // seen again
			for _, r := range tt.reach {
				host, command, _ := strings.Cut(r, " ")
				c.daemons.begun(host, launch.Daemon{}, launch.Probe(command))
			}
			o := c.checkReached(c.agreed().roster, nil)
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
			c.allowPartial = true
			require.Nil(t, c.checkReached(c.agreed().roster, nil))
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
		c.noteLauncher(t.Context(), strings.Fields(line), "/")
		require.Equal(t, warns, strings.Contains(log.String(), "takes an option for its host list"), line)
		require.Equal(t, warns, strings.Contains(log.String(), "write AZUREML_MPI_HOSTFILE without $"), line)
	}
}

func TestAnswerHorovodrun(t *testing.T) {
	for name, tt := range map[string]struct {
		call localapi.HorovodrunCall
		set  func(*container)
		want string
	}{
		"all": {
			localapi.HorovodrunCall{Args: []string{"-np", "6", "x"}}, nil,
			"-H node-0:2,node-1:2,node-2:2 --network-interface eth0",
		},
		"some": {localapi.HorovodrunCall{Args: []string{"-np", "3", "x"}}, nil, "-H node-0:2,node-1:1 --network-interface eth0"},
		"too many": {
			localapi.HorovodrunCall{Args: []string{"-np", "9", "x"}}, nil,
			"-H node-0:2,node-1:2,node-2:2 --network-interface eth0",
		},
		"no number": {
			localapi.HorovodrunCall{Args: []string{"x"}}, nil, "-np 6 -H node-0:2,node-1:2,node-2:2 --network-interface eth0",
		},
		"own host only": {localapi.HorovodrunCall{Args: []string{"-np", "1", "x"}}, nil, "-H node-0:1"},
		"own network": {
			localapi.HorovodrunCall{Args: []string{"-np", "3", "--network-interfaces", "ib0", "x"}}, nil, "-H node-0:2,node-1:1",
		},
		"variable": {localapi.HorovodrunCall{Args: []string{"-np", "3", "x"}, Network: "ib0"}, nil, "-H node-0:2,node-1:1"},
		"our variable": {
			localapi.HorovodrunCall{Args: []string{"-np", "3", "x"}, Network: "eth0"}, nil,
			"-H node-0:2,node-1:1 --network-interface eth0",
		},
		"an old version": {localapi.HorovodrunCall{Args: []string{"-np", "3", "x"}, Old: true}, nil, "-H node-0:2,node-1:1"},
		"unknown option": {
			localapi.HorovodrunCall{Args: []string{"--new", "-np", "3", "x"}}, nil,
			"-H node-0:2,node-1:2,node-2:2 --network-interface eth0",
		},
		"hosts":      {localapi.HorovodrunCall{Args: []string{"-np", "3", "-H", "a:3", "x"}}, nil, ""},
		"version":    {localapi.HorovodrunCall{Args: []string{"--version"}}, nil, ""},
		"--exec all": {localapi.HorovodrunCall{Args: []string{"-np", "3", "x"}}, func(c *container) { c.exec = execAll }, ""},
		"before the commit": {
			localapi.HorovodrunCall{Args: []string{"-np", "3", "x"}}, func(c *container) { c.agree(rendezvous.Roster{}, launch.Fabric{}) }, "",
		},
		"different networks": {
			localapi.HorovodrunCall{Args: []string{"-np", "3", "x"}},
			func(c *container) { c.agreed().roster.Members[2].Network = "eth1" }, "-H node-0:2,node-1:1",
		},
		"an unknown network": {
			localapi.HorovodrunCall{Args: []string{"-np", "3", "x"}}, func(c *container) { c.agreed().roster.Members[2].Network = "" },
			"-H node-0:2,node-1:1",
		},
		"IPv6": {
			localapi.HorovodrunCall{Args: []string{"-np", "3", "x"}},
			func(c *container) { c.agreed().roster.Members[0].Addr = netip.MustParseAddrPort("[2001:db8::1]:1") },
			"-H node-0:2,node-1:1",
		},
		"a name for a shell": {
			localapi.HorovodrunCall{Args: []string{"-np", "3", "x"}}, func(c *container) { inAll(c, "a;b") },
			"-H node-0:2,node-1:1",
		},
		"a launcher by itself": {
			localapi.HorovodrunCall{Args: []string{"-np", "3", "x"}}, func(c *container) { c.agreed().roster.Members[0].Slots = 0 },
			"-H node-1:2,node-2:1 --network-interface eth0",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := newReached(t, "horovodrun")
			c.nonce = "0"
			if tt.set != nil {
				tt.set(c)
			}
			require.Equal(t, tt.want, strings.Join(answers{c}.Horovodrun(t.Context(), tt.call), " "))
		})
	}
}

func inAll(c *container, network string) {
	for i := range c.agreed().roster.Members {
		c.agreed().roster.Members[i].Network = network
	}
}

func TestLacksNetworkOption(t *testing.T) {
	name := filepath.Join(t.TempDir(), "horovodrun")
	for text, want := range map[string]bool{
		"from horovod.run import run\n":                                   true,  // 0.18
		"from horovod.run.run import run_commandline\n":                   true,  // 0.19.1
		"from horovod.run.runner import run_commandline\n":                false, // 0.19.5
		"import sys\nfrom horovod.runner.launch import run_commandline\n": false,
		"#!/bin/sh\n": false,
	} {
		require.NoError(t, os.WriteFile(name, []byte(text), 0o755))
		require.Equal(t, want, lacksNetworkOption(name), text)
	}
	require.False(t, lacksNetworkOption(name+"x"))
}
