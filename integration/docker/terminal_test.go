package docker

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"
)

// terminal is a terminal on which a docker command runs.
type terminal struct {
	tty *os.File

	mu   sync.Mutex
	text bytes.Buffer
	read int           // end of the text that see has found last
	news chan struct{} // closed when text grows
	over bool          // the terminal is closed
}

// newTerminal starts the docker command on a terminal of 50 lines and 200 columns.
func newTerminal(t *testing.T, args ...string) *terminal {
	t.Helper()
	master, slave, err := pty.Open()
	require.NoError(t, err)
	defer func() { _ = slave.Close() }()
	require.NoError(t, pty.Setsize(master, &pty.Winsize{Rows: 50, Cols: 200}))
	cmd := exec.CommandContext(t.Context(), "docker", args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(t, cmd.Start())
	term := &terminal{tty: master, news: make(chan struct{})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(term, master)
		_ = cmd.Wait()
		term.mu.Lock()
		defer term.mu.Unlock()
		term.over = true
		close(term.news)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		_ = master.Close()
		if t.Failed() {
			t.Logf("--- terminal\n%s", term.text.String())
		}
	})
	return term
}

func (term *terminal) Write(p []byte) (int, error) {
	term.mu.Lock()
	defer term.mu.Unlock()
	close(term.news)
	term.news = make(chan struct{})
	return term.text.Write(p)
}

// see waits until the terminal shows the text, after the text of the last call.
func (term *terminal) see(t *testing.T, text string) {
	t.Helper()
	for timeout := time.After(documentTime); ; {
		term.mu.Lock()
		at, over, news := strings.Index(term.text.String()[term.read:], text), term.over, term.news
		if at >= 0 {
			term.read += at + len(text)
			term.mu.Unlock()
			return
		}
		term.mu.Unlock()
		if over {
			require.FailNow(t, "the terminal closed", "without showing %q", text)
		}
		select {
		case <-news:
		case <-timeout:
			require.FailNow(t, "timeout", "the terminal does not show %q", text)
		}
	}
}

// keys types keys.
func (term *terminal) keys(t *testing.T, keys string) {
	t.Helper()
	_, err := io.WriteString(term.tty, keys)
	require.NoError(t, err)
}
