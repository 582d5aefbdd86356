package launch

import (
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCheckSizes compares the limit with the kernel's.
func TestCheckSizes(t *testing.T) {
	run := func(kv string) error {
		cmd := exec.Command("/bin/true")
		cmd.Env = []string{kv}
		return cmd.Run()
	}
	fits := "TF_CONFIG=" + strings.Repeat("x", maxVariable-1-len("TF_CONFIG="))
	require.NoError(t, checkSizes([]string{"A=b", fits}))
	require.NoError(t, run(fits))
	require.ErrorIs(t, run(fits+"x"), syscall.E2BIG)
	require.EqualError(t, checkSizes([]string{"A=b", fits + "x"}),
		"TF_CONFIG would be 131073 bytes; Linux limits one variable to 131072")
}
