package timeline

import (
	"io"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLeave(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	p := page(timelines()["late"], "")
	status := func(w io.Writer) error {
		_, err := io.WriteString(w, "{}\n")
		return err
	}
	require.NoError(t, p.Leave(dir, status))
	for name, want := range map[string]string{
		"report.html": "<!DOCTYPE html>", "timeline.json": `{"displayTimeUnit"`, "status.json": "{}",
	} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Contains(t, string(b), want)
	}
	require.Error(t, p.Leave(filepath.Join(dir, "status.json"), status))
	require.ErrorIs(t, p.Leave(dir, func(io.Writer) error { return errBroken }), errBroken)
}

// TestLeaveDoesNotHang writes to a file system that does not answer.
func TestLeaveDoesNotHang(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p := page(timelines()["one"], "")
		release := make(chan struct{})
		begin := time.Now()
		require.Error(t, p.Leave(dir, func(io.Writer) error {
			<-release
			return nil
		}))
		require.Equal(t, leaveTimeout, time.Since(begin))
		close(release)
	})
}
