package docker

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestReadme runs the job of README.md as a stranger would, from its two files and the program alone. The image is
// based on that of the other tests, which has the packages already.
func TestReadme(t *testing.T) {
	needEngine(t)
	base, err := image("./base.sh")
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	require.NoError(t, err)
	_, page, _ := strings.Cut(string(text), "\n## Try it\n")
	block := func(language string) string {
		m := regexp.MustCompile("(?s)```" + language + "\n(.*?)```\n").FindStringSubmatch(page)
		require.NotNil(t, m)
		return m[1]
	}
	dockerfile := regexp.MustCompile(`FROM .*\nRUN .*\n`).ReplaceAllString(block("dockerfile"), "FROM "+base+"\n")
	require.Contains(t, dockerfile, base)

	dir := t.TempDir()
	compose := filepath.Join(dir, "compose.yaml")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(dockerfile), 0o600))
	require.NoError(t, os.WriteFile(compose, []byte(block("yaml")), 0o600))
	build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(dir, "paiinit"), root+"/cmd/paiinit")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))

	p := &project{
		name: "paiinit-test-" + runName + "-readme", secret: "of this test, long enough",
		env: append(os.Environ(), "SECRET=of this test, long enough"),
	}
	p.base = append(composeCommand(t), "--project-name", p.name, "--file", compose)
	t.Cleanup(func() {
		p.remove(t)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 3*time.Minute)
		defer cancel()
		_, err := p.compose(ctx, "down", "--rmi", "local")
		assert.NoError(t, err)
	})
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute) // it builds images, too
	defer cancel()
	if out, err := p.compose(ctx, "up"); err != nil { // its status differs between versions of compose
		t.Logf("%v\n%s", err, out)
	}
	requireStatus(t, p.wait(ctx, t), 0)
	sums, err := docker(t.Context(), "logs", p.service(t, "launcher", 1))
	require.NoError(t, err)
	assert.Equal(t, 8, strings.Count(sums, "8 of 8\n"), sums)
}
