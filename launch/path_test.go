package launch

import (
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFirstInPath(t *testing.T) {
	for _, tt := range []struct{ environ, want []string }{
		{[]string{"A=1", "PATH=/bin:/usr/bin"}, []string{"A=1", "PATH=/job:/bin:/usr/bin"}},
		{[]string{"PATH=/job:/bin", "A=1"}, []string{"PATH=/job:/bin", "A=1"}},
		{[]string{"PATH=/bin:/job"}, []string{"PATH=/job:/bin:/job"}},
		{[]string{"PATH=/bin", "PATH=/other"}, []string{"PATH=/job:/bin"}},
		{[]string{"PATH="}, []string{"PATH=/job:" + defaultPath}},
		{nil, []string{"PATH=/job:" + defaultPath}},
	} {
		environ, err := CommandEnvironment(tt.environ, nil, "/job", slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		require.Equal(t, tt.want, environ, "%q", tt.environ)
	}
}

func TestLookPastSelf(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	root := t.TempDir()
	ours, image := filepath.Join(root, "bin"), filepath.Join(root, "image")
	require.NoError(t, os.Mkdir(ours, 0o755))
	require.NoError(t, os.Mkdir(image, 0o755))
	require.NoError(t, os.Symlink(self, filepath.Join(ours, "ssh")))
	other := filepath.Join(image, "ssh")
	require.NoError(t, os.WriteFile(other, nil, 0o755))
	got, err := LookPastSelf("ssh", []string{"PATH=" + ours + ":" + image})
	require.NoError(t, err)
	require.Equal(t, other, got)
	_, err = LookPastSelf("ssh", []string{"PATH=" + ours})
	require.ErrorContains(t, err, "there is no other ssh in PATH")
}

func TestBecome(t *testing.T) {
	if program := os.Getenv("BECOME"); program != "" {
		t.Fatal(Become(program, []string{"sh", "-c", "echo $WHO"}, []string{"WHO=another"}))
	}
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self, "-test.run=^TestBecome$")
	cmd.Env = append(os.Environ(), "BECOME=/bin/sh")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "another\n", string(out))
	require.EqualError(t, Become("/none", []string{"none"}, nil), "running /none: no such file or directory")
}
