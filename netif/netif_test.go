package netif

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestNetwork(t *testing.T) {
	require.Equal(t, Network{}, Of(netip.MustParseAddr("127.0.0.1")))
	require.Empty(t, Of(netip.MustParseAddr("192.0.2.1")).Name, "no host has an address of the documentation range")

	at := func(texts ...string) (hosts []Endpoint) {
		for _, a := range texts {
			hosts = append(hosts, Endpoint{Addr: netip.MustParseAddr(a)})
		}
		return hosts
	}
	n := Network{Name: "eth1", Prefix: netip.MustParsePrefix("10.0.0.0/24"), Several: true}
	require.Equal(t, "10.0.0.0/24", n.Common(at("10.0.0.1", "10.0.0.9")))
	require.Empty(t, n.Common(at("10.0.0.1", "10.0.1.1")), "one rank is behind a router")
	n.Several = false
	require.Empty(t, n.Common(at("10.0.0.1")), "there is nothing to choose")
}

// A host of many containers has many interfaces, and the time of a start must not grow with their square.
func TestOfAmongManyInterfaces(t *testing.T) {
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

		require.Equal(t, Network{"d7", netip.MustParsePrefix("10.0.7.0/24"), true},
			Of(netip.MustParseAddr("10.0.7.1")))
		links, err := usableLinks()
		require.NoError(t, err)
		got := make(map[string][]string)
		for _, l := range links {
			for _, p := range l.prefixes {
				got[l.name] = append(got[l.name], p.String())
			}
		}
		require.Equal(t, libraryLinks(t), got)

		// We compare the shortest of several runs, because the machine is busy; both ask the kernel the same way.
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
		require.Less(t, shortest(func() { Of(netip.MustParseAddr("10.0.7.1")) }), 20*once)
	})
}

// libraryLinks returns the answer of the standard library, which fetches all addresses once for each interface.
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

func TestAnswers(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	at := netip.MustParseAddrPort(listener.Addr().String())
	require.NoError(t, Answers(t.Context(), at, time.Minute), "a program listens")
	require.NoError(t, listener.Close())
	require.NoError(t, Answers(t.Context(), at, time.Minute), "the kernel refuses")
	inNetwork(t, func() { // the host at the other end of the link does not answer
		cmd := exec.Command("ip", "-batch", "-")
		cmd.Stdin = strings.NewReader("link add near type veth peer name far\naddr add 192.0.2.1/24 dev near\n" +
			"link set near up\nlink set far up\nneigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev near\n")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		silent := netip.MustParseAddrPort("192.0.2.2:20000")
		err = Answers(t.Context(), silent, 100*time.Millisecond)
		require.EqualError(t, err, "no answer from 192.0.2.2:20000/tcp within 100ms")
		ended, end := context.WithCancel(t.Context())
		end()
		require.NoError(t, Answers(ended, silent, time.Minute), "the job has ended meanwhile")
		nowhere := netip.MustParseAddrPort("198.51.100.1:20000")
		require.Error(t, Answers(t.Context(), nowhere, time.Minute), "no route")
	})
}

// inNetwork runs f, and the commands that f starts, in a new network namespace.
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
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, and the namespace with the thread
		err := unix.Unshare(unix.CLONE_NEWNET)
		defer func() { done <- err }()
		if err == nil {
			f()
		}
	}()
	require.NoError(t, <-done)
}
