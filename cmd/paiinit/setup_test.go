package main

import (
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/netif"
)

// TestDocumentedVariables compares the table of docs/launchers.md with the variables that rank 0 passes to launchers in
// a job that needs all of them.
func TestDocumentedVariables(t *testing.T) {
	b, err := os.ReadFile("../../docs/launchers.md")
	require.NoError(t, err)
	_, table, ok := strings.Cut(string(b), "<!-- begin: launchers -->")
	require.True(t, ok)
	table, _, ok = strings.Cut(table, "<!-- end: launchers -->")
	require.True(t, ok)
	var documented []string
	for _, m := range regexp.MustCompile("(?m)^\\| [^|]+ \\| `([A-Z0-9a-z_]+)=").FindAllStringSubmatch(table, -1) {
		documented = append(documented, m[1])
	}

	c, _ := newReached(t, "mpirun")
	c.state.Program = "/usr/bin/paiinit"
	c.agent.Environ = []string{"TMPDIR=" + t.TempDir() + "/none"}
	s := c.agreed().setup(netif.Network{Name: "eth1", Prefix: netip.MustParsePrefix("10.0.0.0/24"), Several: true})
	s.Root = true // this test may run as another user
	require.NoError(t, s.Check())
	var passed []string
	for _, v := range launch.Environment(s) {
		passed = append(passed, v.Name)
	}
	require.Equal(t, documented, passed)
}
