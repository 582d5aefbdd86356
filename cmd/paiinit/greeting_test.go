package main

import (
	"context"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/paiinit/paiinit/jobkey"
	"github.com/paiinit/paiinit/rendezvous"
	"github.com/paiinit/paiinit/rsh"
	"github.com/paiinit/paiinit/sshd"
)

// afterGreeting is a client's connection that holds back its data until the server has sent something.
type afterGreeting struct {
	net.Conn
	mu    sync.Mutex
	heard bool
	held  []byte
}

func (c *afterGreeting) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.heard {
		c.held = append(c.held, b...)
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c *afterGreeting) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.heard && n > 0 {
		c.heard = true
		if _, err := c.Conn.Write(c.held); err != nil {
			return n, err
		}
	}
	return n, err
}

// A client that waits for the identification can log in: the port sends it, and drops the copy that the server sends.
func TestAClientMayWaitForTheGreeting(t *testing.T) {
	keys, err := jobkey.Derive([]byte("a secret of a test, long enough"), "job", "0")
	require.NoError(t, err)
	server, err := sshd.New(sshd.Config{
		HostKey: keys.Host("worker-0"), Comment: rsh.Comment(keys.Label(), "worker-0"),
		Authorized: []ssh.PublicKey{keys.User().PublicKey()},
	})
	require.NoError(t, err)
	port, err := rendezvous.Listen(t.Context(), 0, nil, nil)
	require.NoError(t, err)
	var serve sync.WaitGroup
	serve.Go(func() { _ = server.Serve(port.SSH(server.Greeting())) })
	defer serve.Wait()
	defer func() { require.NoError(t, server.Shutdown(context.Background())) }()
	defer func() { require.NoError(t, port.Close()) }()
	for _, patient := range []bool{true, false} {
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port.Number()))
		conn, err := (&net.Dialer{Timeout: time.Minute}).Dial("tcp", addr)
		require.NoError(t, err)
		require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
		if patient {
			conn = &afterGreeting{Conn: conn}
		}
		c, _, _, err := ssh.NewClientConn(conn, "worker-0", &ssh.ClientConfig{
			User: "root", Auth: []ssh.AuthMethod{ssh.PublicKeys(keys.User())},
			HostKeyCallback: ssh.FixedHostKey(keys.Host("worker-0").PublicKey()),
		})
		require.NoError(t, err, "patient: %v", patient)
		require.NoError(t, c.Close())
	}
}
