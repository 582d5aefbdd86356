package main

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/netif"
	"github.com/paiinit/paiinit/pid1"
)

// Only on hosts with several networks does paiinit look for the user's own choice of a network.
func TestHintsThatTheUserHasSettled(t *testing.T) {
	script := filepath.Join(t.TempDir(), "train.sh")
	require.NoError(t, os.WriteFile(script, []byte("mpirun -mca btl_tcp_if_exclude docker0 train\n"), 0o600))
	var log bytes.Buffer
	c := &container{
		identity: identity{
			log:      slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
			agent:    pid1.Agent{Environ: []string{"PATH=/none"}},
			settings: settings{command: []string{"sh", filepath.Base(script)}, dir: filepath.Dir(script)},
		},
	}
	hints := func(n netif.Network) (names []string) {
		l := launch.Setup{Interface: n.Name, Several: n.Several, Network: "10.0.0.0/24"}
		for _, v := range c.agreed().withoutSettled(n, launch.Environment(l)) {
			names = append(names, v.Name)
		}
		return names
	}
	require.Contains(t, hints(netif.Network{Name: "eth0"}), "OMPI_MCA_btl_tcp_if_include")
	require.Empty(t, log.String())
	with := hints(netif.Network{Name: "eth0", Several: true})
	require.NotContains(t, with, "OMPI_MCA_btl_tcp_if_include")
	require.Contains(t, with, "OMPI_MCA_oob_tcp_if_include")
	require.Contains(t, with, "NCCL_SOCKET_IFNAME")
	require.Contains(t, log.String(),
		`msg="a network hint is left out" phase=launch variable=OMPI_MCA_btl_tcp_if_include `+
			`reason="btl_tcp_if_exclude is in `+script+`"`)

	c.networkHints = hintsOff
	require.Equal(t, netif.Network{}, c.agreed().reachedOver())
}
