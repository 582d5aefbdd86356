package sweep_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/integration/sweep"
)

const nameVar = "SWEEP_TEST_NAME"

func TestMain(m *testing.M) {
	if name := os.Getenv(nameVar); name != "" {
		err := makeAll(name)
		fmt.Println("made", err)
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// makeAll creates one object of each kind in the engine, from an empty image.
func makeAll(name string) error {
	if _, err := sweep.Later(name); err != nil {
		return err
	}
	image := "paiinit-test/empty:" + name
	for _, args := range [][]string{
		{"import", "--change", `CMD ["none"]`, "-", image},
		{"tag", image, "paiinit-test-empty:" + name},
		{"network", "create", "paiinit-" + name + "-net"},
		{"volume", "create", "paiinit-" + name + "-volume"},
		{"create", "--name", "paiinit-" + name + "-1", image},
	} {
		cmd := exec.Command("docker", args...)
		cmd.Stdin = bytes.NewReader(make([]byte, 1024)) // an empty tar archive
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w: %s", args, err, out)
		}
	}
	return nil
}

func left(t *testing.T, name string) (all []string) {
	for _, kind := range []string{"container", "network", "volume", "image"} {
		args := map[string][]string{
			"container": {"ps", "--all", "--format", "{{.Names}}"},
			"network":   {"network", "ls", "--format", "{{.Name}}"},
			"volume":    {"volume", "ls", "--format", "{{.Name}}"},
			"image":     {"images", "--format", "{{.Repository}}:{{.Tag}}"},
		}[kind]
		out, err := exec.Command("docker", args...).Output()
		require.NoError(t, err)
		for _, line := range strings.Fields(string(out)) {
			if strings.Contains(line, name) {
				all = append(all, line)
			}
		}
	}
	return all
}

// TestKilled: a killed test must leave no objects behind.
func TestKilled(t *testing.T) {
	if out, err := exec.Command("docker", "info").CombinedOutput(); err != nil {
		if os.Getenv("PAIINIT_TEST_REQUIRE") != "" {
			t.Fatalf("no Docker engine: %s", out)
		}
		t.Skipf("no Docker engine: %s", out)
	}
	name := sweep.NewName()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), nameVar+"="+name)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	defer func() { _ = in.Close() }()
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	buf := make([]byte, 4096)
	n, err := out.Read(buf)
	require.NoError(t, err)
	require.Equal(t, "made <nil>\n", string(buf[:n]))
	require.Len(t, left(t, name), 5)
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	require.Eventually(t, func() bool { return len(left(t, name)) == 0 }, time.Minute, 50*time.Millisecond)
}
