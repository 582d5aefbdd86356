package main

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/pid1"
	"github.com/paiinit/paiinit/rendezvous"
)

func TestNetwork(t *testing.T) {
	require.Equal(t, network{}, networkOf(netip.MustParseAddr("127.0.0.1")))
	require.Empty(t, networkOf(netip.MustParseAddr("192.0.2.1")).name, "nobody has an address of the documentation")

	at := func(addrs ...string) (members []rendezvous.Member) {
		for _, a := range addrs {
			members = append(members, rendezvous.Member{Record: rendezvous.Record{Addr: netip.AddrPortFrom(netip.MustParseAddr(a), 1)}})
		}
		return members
	}
	n := network{name: "eth1", prefix: netip.MustParsePrefix("10.0.0.0/24"), several: true}
	require.Equal(t, "10.0.0.0/24", n.common(at("10.0.0.1", "10.0.0.9")))
	require.Empty(t, n.common(at("10.0.0.1", "10.0.1.1")), "one rank is behind a router")
	n.several = false
	require.Empty(t, n.common(at("10.0.0.1")), "there is nothing to choose")
}

// What the user has chosen is looked for where there is a choice only: on hosts with several networks.
func TestHintsThatTheUserHasSettled(t *testing.T) {
	script := filepath.Join(t.TempDir(), "train.sh")
	require.NoError(t, os.WriteFile(script, []byte("mpirun -mca btl_tcp_if_exclude docker0 train\n"), 0o600))
	var log bytes.Buffer
	c := &container{
		log: slog.New(slog.NewTextHandler(&log, nil)), agent: pid1.Agent{Environ: []string{"PATH=/none"}},
		settings: settings{command: []string{"sh", filepath.Base(script)}, dir: filepath.Dir(script)},
	}
	hints := func(n network) (names []string) {
		l := launch.Setup{Interface: n.name, Several: n.several, Network: "10.0.0.0/24"}
		for _, v := range c.withoutSettled(n, rendezvous.Roster{}, launch.Environment(l), slog.LevelInfo) {
			names = append(names, v.Name)
		}
		return names
	}
	require.Contains(t, hints(network{name: "eth0"}), "OMPI_MCA_btl_tcp_if_include")
	require.Empty(t, log.String())
	with := hints(network{name: "eth0", several: true})
	require.NotContains(t, with, "OMPI_MCA_btl_tcp_if_include")
	require.Contains(t, with, "OMPI_MCA_oob_tcp_if_include")
	require.Contains(t, with, "NCCL_SOCKET_IFNAME")
	require.Contains(t, log.String(),
		`msg="a network hint is left out" phase=launch variable=OMPI_MCA_btl_tcp_if_include `+
			`reason="btl_tcp_if_exclude is in `+script+`"`)

	c.networkHints = hintsOff
	require.Equal(t, network{}, c.reachedOver(rendezvous.Roster{}))
}

// A host of many containers has many interfaces, and a start must not take time for each with each.
func TestNetworkOfAmongManyInterfaces(t *testing.T) {
	const count = 150
	inNetwork(t, func() {
		var batch strings.Builder
		for i := range count {
			fmt.Fprintf(&batch, "link add d%d type veth peer name p%d\naddr add 10.0.%d.1/24 dev d%d\n"+
				"addr add fd00::%d/64 dev d%d nodad\nlink set d%d up\n", i, i, i, i, i, i, i)
		}
		cmd := exec.Command("ip", "-batch", "-")
		cmd.Stdin = strings.NewReader(batch.String())
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)

		require.Equal(t, network{"d7", netip.MustParsePrefix("10.0.7.0/24"), true},
			networkOf(netip.MustParseAddr("10.0.7.1")))
		links, err := usableLinks()
		require.NoError(t, err)
		got := make(map[string][]string)
		for _, l := range links {
			for _, p := range l.prefixes {
				got[l.name] = append(got[l.name], p.String())
			}
		}
		require.Equal(t, libraryLinks(t), got)

		// The shortest of several times, on a machine that does other things, too; both ask the kernel the same way.
		shortest := func(f func()) time.Duration {
			least := time.Hour
			for range 20 {
				began := time.Now()
				f()
				least = min(least, time.Since(began))
			}
			return least
		}
		once := shortest(func() { _, _ = net.InterfaceAddrs() })
		require.Less(t, shortest(func() { networkOf(netip.MustParseAddr("10.0.7.1")) }), 20*once)
	})
}

// libraryLinks is what the standard library says, which asks the kernel for all addresses once for each interface.
func libraryLinks(t *testing.T) map[string][]string {
	t.Helper()
	found := make(map[string][]string)
	ifs, err := net.Interfaces()
	require.NoError(t, err)
	for _, i := range ifs {
		addrs, err := i.Addrs()
		require.NoError(t, err)
		for _, a := range addrs {
			if i.Flags&net.FlagUp != 0 && i.Flags&net.FlagLoopback == 0 {
				found[i.Name] = append(found[i.Name], a.String())
			}
		}
	}
	return found
}

// inNetwork runs f in a network namespace of its own, as the commands that f starts.
func inNetwork(t *testing.T, f func()) {
	t.Helper()
	if _, err := exec.LookPath("ip"); err != nil || os.Geteuid() != 0 {
		const why = "needs root and the ip command"
		if os.Getenv("PAIINIT_TEST_REQUIRE") != "" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for ever: the thread ends with the goroutine, and the namespace with the thread
		err := unix.Unshare(unix.CLONE_NEWNET)
		defer func() { done <- err }()
		if err == nil {
			f()
		}
	}()
	require.NoError(t, <-done)
}
