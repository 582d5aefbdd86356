package integration

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/integration/lab"
)

// TestTwoNetworks: every host has a second network, on which it is alone and which its kernel lists first. The
// environment has host names and no addresses.
func TestTwoNetworks(t *testing.T) {
	t.Parallel()
	for name, last := range map[string]func(i int) int{
		"the same address on every host, as on a container bridge": func(int) int { return 1 },
		"an address of its own": func(i int) int { return i + 1 },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			hosts := withInput(peersHosts(t, l, 3))
			var names []string
			for i, h := range hosts {
				require.NoError(t, h.machine.Isolate(netip.MustParsePrefix(fmt.Sprintf("172.30.0.%d/24", last(i)))))
				l.Name("host"+fmt.Sprint(i), h.machine.Addr)
				names = append(names, "host"+fmt.Sprint(i))
			}
			for _, h := range hosts {
				h.env["PAIINIT_PEERS"] = strings.Join(names, ",")
			}
			containers := startAll(t, hosts, "sh", "-c", `mpirun -np 3 --map-by node hostname &&
				mpiexec.hydra -ppn 1 hostname &&
				/run/bin/paiinit each -- `+
				`sh -c 'ssh worker-0 true && echo master $MASTER_ADDR interface $GLOO_SOCKET_IFNAME'`)
			require.Equal(t, same(3, 0), statuses(t, containers))
			for i := range hosts {
				require.Contains(t, stdout(containers[0]),
					fmt.Sprintf("%d: master %s interface eth0\n", i, hosts[0].machine.Addr))
			}
		})
	}
}

// TestNetworksThatTheImageExcludes: every host has a second network, which the image's configuration of Open MPI
// excludes, as Horovod's does with a container bridge. Open MPI rejects an interface to include beside that, so the
// job's own choice must win.
func TestNetworksThatTheImageExcludes(t *testing.T) {
	t.Parallel()
	const exclude = "btl_tcp_if_exclude = lo,isolated0\n"
	const found = `phase=launch variable=OMPI_MCA_btl_tcp_if_include reason="`
	const (
		btl  = "OMPI_MCA_btl_tcp_if_include=10.77.0.0/16"
		oob  = "OMPI_MCA_oob_tcp_if_include=10.77.0.0/16"
		nccl = "NCCL_SOCKET_IFNAME=eth0"
	)
	for name, tt := range map[string]struct {
		conf, script string // in the image
		flags        []string
		want         []string // of the environment
		says         string
	}{
		"by nothing": {script: "mpirun", want: []string{btl, oob, nccl}},
		"by mca-params.conf": {
			conf: exclude, script: "mpirun", want: []string{oob, nccl},
			says: found + `btl_tcp_if_exclude is in /tmp/.openmpi/mca-params.conf"`,
		},
		"by the script": {
			script: "mpirun -mca btl_tcp_if_exclude lo,isolated0", want: []string{oob, nccl},
			says: found + `btl_tcp_if_exclude is in /run/image/train.sh"`,
		},
		"and no hints": {
			conf: exclude, script: "mpirun -mca oob_tcp_if_exclude isolated0",
			flags: []string{"--network-hints", "off"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			image := t.TempDir()
			write := func(name, text string) {
				require.NoError(t, os.WriteFile(filepath.Join(image, name), []byte(text), 0o755))
			}
			write("mca-params.conf", tt.conf)
			write("train.sh", tt.script+" -np 4 python3 "+allreduce+" && env | sort\n")
			hosts := peersHosts(t, l, 2)
			for i := range hosts {
				require.NoError(t, hosts[i].machine.Isolate(netip.MustParsePrefix("172.30.0.1/24")))
				require.NoError(t, hosts[i].machine.Widen(16))
				hosts[i].flags = tt.flags
				hosts[i].binds = map[string]string{
					"/run/image/train.sh":           filepath.Join(image, "train.sh"),
					"/tmp/.openmpi/mca-params.conf": filepath.Join(image, "mca-params.conf"),
				}
			}
			containers := startAll(t, hosts, "sh", "/run/image/train.sh")
			require.Equal(t, same(2, 0), statuses(t, containers))
			out, log := stdout(containers[0]), stderr(containers[0])
			require.Contains(t, out, "allreduce over 4 ranks on 2 hosts: sum = 10, expected 10")
			for _, name := range []string{btl, oob, nccl} {
				require.Equal(t, slices.Contains(tt.want, name), strings.Contains(out, "\n"+name+"\n"), name)
			}
			require.Contains(t, log, tt.says)
		})
	}
}

// TestClosedPorts: a firewall between the hosts accepts only paiinit's own port, like a security group with that port.
func TestClosedPorts(t *testing.T) {
	requireFirewall(t)
	l := newLab(t)
	hosts := peersHosts(t, l, 2)
	closeHost(t, hosts[1], "add rule inet f in th dport 12345 accept")
	seen := t.TempDir()
	hosts[0].binds = map[string]string{"/run/seen": seen}
	containers := startAll(t, hosts, "sh", "-c", "until [ -e /run/seen/it ]; do sleep 0.01; done")
	waitLine(t, containers[0], "a rank gets no packets on other ports than paiinit's")
	require.Contains(t, stderr(containers[0]), "peer=worker-1")
	require.Contains(t, stderr(containers[0]), "no answer from "+hosts[1].machine.Addr.String()+":")
	require.NoError(t, os.WriteFile(filepath.Join(seen, "it"), nil, 0o600))
	require.Equal(t, same(2, 0), statuses(t, containers))
	require.NotContains(t, stderr(containers[0]), `level=WARN msg="a `)
}

// TestLauncherBehindClosedPorts: mpirun waits for minutes for daemons that cannot connect to it. The log says so after
// 15 s, and not if they could connect.
func TestLauncherBehindClosedPorts(t *testing.T) {
	t.Parallel()
	requireFirewall(t)
	const silence = "a launcher waits for its daemons on other hosts"
	for name, command := range launchers {
		for where, closed := range map[string][]int{"rank 0": {0}, "everywhere": {0, 1}, "nowhere": nil} {
			t.Run(name+"/"+where, func(t *testing.T) {
				hosts := peersHosts(t, newLab(t), 2)
				for _, i := range closed {
					closeHost(t, hosts[i], "add rule inet f in th dport 12345 accept")
				}
				containers := startAll(t, hosts, append(command, "sh", "-c", "sleep 18")...)
				if closed == nil {
					require.Equal(t, same(2, 0), statuses(t, containers))
					require.NotContains(t, stderr(containers[0]), "level=WARN")
					return
				}
				waitLine(t, containers[0], silence)
				log := stderr(containers[0])
				require.Equal(t, 1, strings.Count(log, "level=WARN"), log)
				found := strings.Contains(log, `err="worker-1 gets no packets: no answer from `)
				require.Equal(t, len(closed) == 2, found, log)
				require.NoError(t, containers[0].Signal(syscall.SIGTERM))
				require.Equal(t, same(2, 143), statuses(t, containers))
			})
		}
	}
}

// TestPinnedPorts runs the settings of docs/ports.md: firewalls accept paiinit's port and one range, and each launcher
// is told that range. Without the settings the same firewalls stop the job (TestLauncherBehindClosedPorts).
func TestPinnedPorts(t *testing.T) {
	t.Parallel()
	requireFirewall(t)
	ranks := map[string]string{"OMPI_MCA_btl_tcp_port_min_v4": "22000", "OMPI_MCA_btl_tcp_port_range_v4": "1000"}
	const kernel = "33000 34999" // for what asks the kernel for a port: not Open MPI's ranks, which count from 1024
	for name, tt := range map[string]struct {
		env     map[string]string
		daemons string // another variable
		sysctl  string
		command []string
	}{
		"openmpi": {
			env: ranks, daemons: "OMPI_MCA_oob_tcp_dynamic_ipv4_ports=21000-21999",
			command: []string{"mpirun", "python3", allreduce},
		},
		"mpich": {
			daemons: "MPIEXEC_PORT_RANGE=21000:21999", command: []string{"mpiexec.hydra", "true"},
		},
		"openmpi, daemons by the kernel": {
			env: ranks, sysctl: kernel, command: []string{"mpirun", "python3", allreduce},
		},
		"mpich, by the kernel": {sysctl: kernel, command: []string{"mpiexec.hydra", "true"}},
	} {
		t.Run(name, func(t *testing.T) {
			hosts := withInput(peersHosts(t, newLab(t), 3))
			for i := range hosts {
				maps.Copy(hosts[i].env, tt.env)
				if name, value, found := strings.Cut(tt.daemons, "="); found {
					hosts[i].env[name] = value
				}
				if tt.sysctl != "" {
					run(t, hosts[i], "/bin/sh", "-c", "echo "+tt.sysctl+" >/proc/sys/net/ipv4/ip_local_port_range")
				}
				closeHost(t, hosts[i], "add rule inet f in th dport 12345 accept",
					"add rule inet f in tcp dport { 21000-22999, 33000-34999 } accept")
			}
			containers := startAll(t, hosts, tt.command...)
			require.Equal(t, same(3, 0), statuses(t, containers))
			require.NotContains(t, stderr(containers[0]), "a launcher waits for its daemons")
		})
	}
}

// run runs a program on the host, outside of any container, until it has ended with 0.
func run(t *testing.T, h host, args ...string) {
	t.Helper()
	program, err := h.machine.Start(lab.Program{Name: args[0], Args: args})
	require.NoError(t, err)
	require.Equal(t, []int{0}, statuses(t, []*lab.Container{program}), "%s", stderr(program))
}

// TestBlockedPort: a firewall on one host lets its own connections pass and drops or rejects others. Rank 0 and that
// rank say so, long before the deadline, and all ranks end alike.
func TestBlockedPort(t *testing.T) {
	t.Parallel()
	requireFirewall(t)
	const (
		noUDP = "insert rule inet f in meta l4proto udp drop"
		reset = "add rule inet f in tcp dport 1-65535 reject with tcp reset"
	)
	for name, tt := range map[string]struct {
		rules []string
		why   string
	}{
		"dropped":               {nil, "no answer"},
		"rejected":              {[]string{reset}, "connection refused"},
		"dropped, without UDP":  {[]string{noUDP}, "no answer"},
		"rejected, without UDP": {[]string{noUDP, "add rule inet f in reject"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			hosts := withInput(peersHosts(t, newLab(t), 3))
			closeHost(t, hosts[2], tt.rules...)
			for i := range hosts {
				hosts[i].flags = []string{"--timeout", "45s"}
			}
			containers := startAll(t, hosts, "true")
			for _, c := range containers[:2] {
				waitLine(t, c, "worker-2 (it reaches rank 0, but rank 0 cannot connect to its 12345/tcp: "+tt.why)
			}
			waitLine(t, containers[2], "worker-0 (rank 0 cannot connect to 12345/tcp of this container: "+tt.why)
			require.Contains(t, stderr(containers[2]), "is the port open here?")
			require.Equal(t, same(3, 75), statuses(t, containers))
			require.Regexp(t, `gave up after [0-9.ms ]+: 2 of 3 ranks are present; missing: worker-2 \([0-9.]+\): `+
				`it reaches rank 0, but rank 0 cannot connect to it: dialled \d+ times? in [0-9.ms ]+, last: `,
				stderr(containers[0]))
		})
	}
}

// nft is the program that sets the firewall of a host.
const nft = "/usr/sbin/nft"

func requireFirewall(t *testing.T) {
	requireLab(t)
	if _, err := os.Stat(nft); err != nil {
		skip(t, err.Error())
	}
}

// closeHost drops what comes to a host unless the host has begun it, or one of the rules accepts it.
func closeHost(t *testing.T, h host, rules ...string) {
	all := append([]string{
		"add table inet f", "add chain inet f in { type filter hook input priority 0; policy drop; }",
		"add rule inet f in ct state established accept", "add rule inet f in iif lo accept",
	}, rules...)
	run(t, h, nft, strings.Join(all, "; "))
}
