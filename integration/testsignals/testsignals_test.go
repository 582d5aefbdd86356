package testsignals_test

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/integration/testsignals"
)

const childVar = "TESTSIGNALS_CHILD"

// TestMain is also the child of TestDefault: it starts with the signals ignored and runs a shell that signals itself.
func TestMain(m *testing.M) {
	if sig := os.Getenv(childVar); sig != "" {
		testsignals.Default()
		out, err := exec.Command("/bin/sh", "-c", "kill -"+sig+" $$; echo ignored").CombinedOutput()
		fmt.Printf("%s%v", out, err)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestDefault(t *testing.T) {
	for sig, want := range map[string]string{"HUP": "hangup", "INT": "interrupt", "QUIT": "quit"} {
		t.Run(sig, func(t *testing.T) {
			cmd := exec.Command("/bin/sh", "-c", `ulimit -c 0; trap "" HUP INT QUIT; exec "$0"`, os.Args[0])
			cmd.Env = append(os.Environ(), childVar+"="+sig)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Contains(t, string(out), "signal: "+want)
			require.NotContains(t, string(out), "ignored")
		})
	}
}
