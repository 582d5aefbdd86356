package rsh

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
)

// stuckConn never answers a channel, not even when it is closed, as x/crypto does in an unlucky moment.
type stuckConn struct {
	ssh.Conn
	release chan struct{}
}

func (c stuckConn) OpenChannel(string, []byte) (ssh.Channel, <-chan *ssh.Request, error) {
	<-c.release
	return nil, nil, errors.New("released")
}

func (c stuckConn) Close() error { return nil }

func TestOpeningAChannelEndsWithTheConnection(t *testing.T) {
	conn := stuckConn{release: make(chan struct{})}
	defer close(conn.release)
	l := &link{conn: conn, lost: make(chan struct{})}
	p := New(Config{})
	failed := make(chan error)
	go func() {
		_, _, err := p.openOn(t.Context(), l, "session")
		failed <- err
	}()
	close(l.lost)
	require.ErrorIs(t, <-failed, errLost)
	require.NoError(t, p.Close(), "and the pool does not wait for what never returns")
}
