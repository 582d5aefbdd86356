package sshd_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/paiinit/paiinit/sshd"
	"github.com/paiinit/paiinit/sshd/sshdtest"
)

func signer(t *testing.T, key any) ssh.Signer {
	t.Helper()
	s, err := ssh.NewSignerFromKey(key)
	require.NoError(t, err)
	return s
}

func TestNobodyElseGetsIn(t *testing.T) {
	server := sshdtest.Start(t, sshd.Config{})
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	ecKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	other := sshdtest.Key(t)
	cert := &ssh.Certificate{
		Key:             other.PublicKey(),
		CertType:        ssh.UserCert,
		ValidPrincipals: []string{"root"},
		ValidBefore:     ssh.CertTimeInfinity,
	}
	require.NoError(t, cert.SignCert(rand.Reader, server.User))
	certified, err := ssh.NewCertSigner(cert, other)
	require.NoError(t, err)
	own := &ssh.Certificate{
		Key:             server.User.PublicKey(),
		CertType:        ssh.UserCert,
		ValidPrincipals: []string{"root"},
		ValidBefore:     ssh.CertTimeInfinity,
	}
	require.NoError(t, own.SignCert(rand.Reader, other))
	ownCertified, err := ssh.NewCertSigner(own, server.User)
	require.NoError(t, err)
	rsaSigner, ecSigner := signer(t, rsaKey), signer(t, ecKey)

	for name, auth := range map[string][]ssh.AuthMethod{
		"none":     nil,
		"password": {ssh.Password("secret")},
		"keyboard": {
			ssh.KeyboardInteractive(func(string, string, []string, []bool) ([]string, error) { return nil, nil }),
		},
		"unknown":  {ssh.PublicKeys(other)},
		"rsa":      {ssh.PublicKeys(rsaSigner)},
		"ecdsa":    {ssh.PublicKeys(ecSigner)},
		"cert":     {ssh.PublicKeys(certified)},    // signed by an authorized key, which is not an authority
		"own-cert": {ssh.PublicKeys(ownCertified)}, // of an authorized key, signed by another key
		"host":     {ssh.PublicKeys(wrongPrivate{other, server.User.PublicKey()})},
	} {
		t.Run(name, func(t *testing.T) {
			config := server.ClientConfig()
			config.User, config.Auth = name, auth
			_, err := ssh.Dial("tcp", server.Addr.String(), config)
			require.Error(t, err)
			line := server.Log.Wait(t, "ssh login refused", "user="+name)
			require.Contains(t, line, "reason=")
			if name == "unknown" {
				require.Contains(t, line, ssh.FingerprintSHA256(other.PublicKey()))
			}
		})
	}
	require.NotContains(t, server.Log.String(), "msg=\"ssh login\"")
	require.Zero(t, run(t, server.Dial(t), "true", nil).status)
	line := server.Log.Wait(t, "msg=\"ssh login\"")
	require.Contains(t, line, ssh.FingerprintSHA256(server.User.PublicKey()))
	require.Contains(t, line, "user=root")
	require.Contains(t, line, "client=SSH-2.0-Go")
}

// wrongPrivate offers a public key without having its private key.
type wrongPrivate struct {
	ssh.Signer
	public ssh.PublicKey
}

func (w wrongPrivate) PublicKey() ssh.PublicKey { return w.public }

func TestEmptyAuthorizedMeansNobody(t *testing.T) {
	key := sshdtest.Key(t)
	srv, err := sshd.New(sshd.Config{HostKey: sshdtest.Key(t)})
	require.NoError(t, err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error)
	go func() { served <- srv.Serve(ln) }()
	for _, auth := range [][]ssh.AuthMethod{nil, {ssh.PublicKeys(key)}} {
		_, err = ssh.Dial("tcp", ln.Addr().String(),
			&ssh.ClientConfig{Auth: auth, HostKeyCallback: ssh.InsecureIgnoreHostKey()})
		require.ErrorContains(t, err, "unable to authenticate")
	}
	require.NoError(t, srv.SelfCheck(t.Context()))
	require.NoError(t, srv.Shutdown(context.Background()))
	require.ErrorIs(t, <-served, sshd.ErrServerClosed)
}

// A client that logs in before the server is known to be safe waits until that is known.
func TestAdmit(t *testing.T) {
	asked, word := make(chan struct{}), make(chan error)
	server := sshdtest.Start(t, sshd.Config{Admit: func() error {
		asked <- struct{}{}
		return <-word
	}})
	require.NoError(t, server.SelfCheck(t.Context()), "who checks is not waited for")
	for _, want := range []error{errors.New("any key can log in"), nil} {
		type result struct {
			client *ssh.Client
			err    error
		}
		logins := make(chan result)
		go func() {
			client, err := ssh.Dial("tcp", server.Addr.String(), server.ClientConfig())
			logins <- result{client, err}
		}()
		<-asked
		require.NotContains(t, server.Log.String(), "msg=\"ssh login\"")
		select {
		case r := <-logins:
			require.Fail(t, "it is over before the word", "%v", r.err)
		case word <- want:
		}
		r := <-logins
		if want != nil {
			require.Error(t, r.err)
			require.Contains(t, server.Log.String(), "level=ERROR msg=\"ssh logins are refused\"")
			require.NotContains(t, server.Log.String(), "msg=\"ssh login\"")
			continue
		}
		require.NoError(t, r.err)
		require.Contains(t, server.Log.String(), "msg=\"ssh login\"")
		require.NoError(t, r.client.Close())
	}
}

// The process of a server needs no listener to use it.
func TestConnect(t *testing.T) {
	user, host := sshdtest.Key(t), sshdtest.Key(t)
	server, err := sshd.New(sshd.Config{HostKey: host, Authorized: []ssh.PublicKey{user.PublicKey()}})
	require.NoError(t, err)
	conn, err := server.Connect()
	require.NoError(t, err)
	c, chans, requests, err := ssh.NewClientConn(conn, "", &ssh.ClientConfig{
		User: "root", Auth: []ssh.AuthMethod{ssh.PublicKeys(user)}, HostKeyCallback: ssh.FixedHostKey(host.PublicKey()),
	})
	require.NoError(t, err)
	client := ssh.NewClient(c, chans, requests)
	require.Equal(t, "here\n", run(t, client, "echo here", nil).stdout)
	require.NoError(t, client.Close())
	require.NoError(t, server.Shutdown(t.Context()))
	conn, err = server.Connect()
	require.NoError(t, err)
	_, err = conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF, "it is over")
	require.NoError(t, conn.Close())
}

func TestSelfCheck(t *testing.T) {
	server := sshdtest.Start(t, sshd.Config{})
	require.NoError(t, server.SelfCheck(t.Context()))
	require.NotContains(t, server.Log.String(), "level=WARN")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, server.SelfCheck(ended), context.Canceled)
	require.NoError(t, server.Shutdown(t.Context()))
	require.ErrorContains(t, server.SelfCheck(t.Context()), "the login could not be tried")

	slow := sshdtest.Start(t, sshd.Config{}, func(s *sshd.Server) { s.SetLogin(time.Nanosecond) })
	require.NoError(t, slow.SelfCheck(t.Context()), "the check has no time limit of its own")
}

func TestPatience(t *testing.T) {
	usual := sshdtest.Start(t, sshd.Config{}).Login()
	require.Equal(t, usual+time.Minute, sshdtest.Start(t, sshd.Config{Patience: time.Minute}).Login())
}

func TestIdentityIsOfTheKeyThatLoggedIn(t *testing.T) {
	cfg := sshd.Config{}
	told := events(&cfg)
	second := sshdtest.Key(t)
	cfg.Authorized = []ssh.PublicKey{second.PublicKey()}
	server := sshdtest.Start(t, cfg)
	config := server.ClientConfig()
	// The first authorized key is accepted but cannot sign; an unknown key is refused; then the client offers the
	// second.
	config.Auth = []ssh.AuthMethod{ssh.PublicKeys(sshdtest.Key(t), refusesToSign{server.User}, second)}
	client, err := ssh.Dial("tcp", server.Addr.String(), config)
	if err != nil { // x/crypto's client gives up if a key cannot sign
		config.Auth = []ssh.AuthMethod{ssh.PublicKeys(sshdtest.Key(t), second)}
		client, err = ssh.Dial("tcp", server.Addr.String(), config)
	}
	require.NoError(t, err)
	defer func() { _ = client.Close() }()
	require.Zero(t, run(t, client, "true", nil).status)
	require.Equal(t, ssh.FingerprintSHA256(second.PublicKey()), (<-told).Key)
}

type refusesToSign struct{ ssh.Signer }

func (refusesToSign) Sign(io.Reader, []byte) (*ssh.Signature, error) {
	return nil, fmt.Errorf("no")
}

func TestIdentification(t *testing.T) {
	server := sshdtest.Start(t, sshd.Config{Comment: "0123456789abcdef worker-2"})
	nc, err := net.Dial("tcp", server.Addr.String())
	require.NoError(t, err)
	defer func() { _ = nc.Close() }()
	_, err = nc.Write([]byte("SSH-2.0-test\r\n"))
	require.NoError(t, err)
	want := "SSH-2.0-paiinit 0123456789abcdef worker-2\r\n"
	got := make([]byte, len(want))
	_, err = io.ReadFull(nc, got)
	require.NoError(t, err)
	require.Equal(t, want, string(got))
	require.Equal(t, "SSH-2.0-paiinit", string(sshdtest.Start(t, sshd.Config{}).Dial(t).ServerVersion()))
}

func TestAlgorithms(t *testing.T) {
	server := sshdtest.Start(t, sshd.Config{})
	try := func(change func(*ssh.ClientConfig)) error {
		config := server.ClientConfig()
		change(config)
		client, err := ssh.Dial("tcp", server.Addr.String(), config)
		if err == nil {
			_ = client.Close()
		}
		return err
	}
	for _, kex := range []string{"mlkem768x25519-sha256", "curve25519-sha256", "curve25519-sha256@libssh.org"} {
		require.NoError(t, try(func(c *ssh.ClientConfig) { c.KeyExchanges = []string{kex} }), kex)
	}
	for _, cipher := range []string{
		"aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "chacha20-poly1305@openssh.com", "aes128-ctr", "aes256-ctr",
	} {
		require.NoError(t, try(func(c *ssh.ClientConfig) { c.Ciphers = []string{cipher} }), cipher)
	}
	for _, mac := range []string{ssh.HMACSHA256ETM, ssh.HMACSHA512ETM, ssh.HMACSHA256, ssh.HMACSHA512} {
		require.NoError(t, try(func(c *ssh.ClientConfig) { c.Ciphers, c.MACs = []string{"aes128-ctr"}, []string{mac} }),
			mac)
	}
	for _, weak := range []func(*ssh.ClientConfig){
		func(c *ssh.ClientConfig) { c.KeyExchanges = []string{ssh.InsecureKeyExchangeDH14SHA1} },
		func(c *ssh.ClientConfig) { c.KeyExchanges = []string{ssh.KeyExchangeECDHP256} },
		func(c *ssh.ClientConfig) { c.Ciphers = []string{ssh.InsecureCipherAES128CBC} },
		func(c *ssh.ClientConfig) { c.Ciphers, c.MACs = []string{"aes128-ctr"}, []string{ssh.HMACSHA1} },
		func(c *ssh.ClientConfig) {
			c.Ciphers, c.MACs = []string{"aes128-ctr"}, []string{ssh.InsecureHMACSHA196}
		},
	} {
		require.ErrorContains(t, try(weak), "no common algorithm")
	}
}

func TestNewRefuses(t *testing.T) {
	key := sshdtest.Key(t)
	for want, cfg := range map[string]sshd.Config{
		"no host key":               {},
		"not printable ASCII":       {HostKey: key, Comment: "a\r\nSSH-2.0-b"},
		"the comment has 201 bytes": {HostKey: key, Comment: strings.Repeat("x", 201)},
		"key 1 is nil":              {HostKey: key, Authorized: []ssh.PublicKey{key.PublicKey(), nil}},
		"is a certificate":          {HostKey: key, Authorized: []ssh.PublicKey{&ssh.Certificate{}}},
		"not an absolute path":      {HostKey: key, Shell: "sh"},
		"reserved": {
			HostKey: key, Channels: map[string]func(context.Context, io.ReadWriteCloser, net.Addr){"session": nil},
		},
	} {
		_, err := sshd.New(cfg)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "creating the SSH server: ")
	}
}

func TestLoginDeadlineIsAbsolute(t *testing.T) {
	const deadline = 3 * time.Second
	server := sshdtest.Start(t, sshd.Config{}, func(s *sshd.Server) { s.SetLogin(deadline) })
	var logged *ssh.Client
	require.Eventually(t, func() bool { // a login may miss the deadline on a busy machine
		client, err := ssh.Dial("tcp", server.Addr.String(), server.ClientConfig())
		if err != nil {
			return false
		}
		logged = client
		return true
	}, testTimeout, 10*time.Millisecond)
	defer func() { _ = logged.Close() }()
	t.Run("late", func(t *testing.T) { // ends when all of them have ended
		for name, talk := range map[string]func(net.Conn){
			"silent": func(net.Conn) {},
			"identified": func(nc net.Conn) {
				_, _ = nc.Write([]byte("SSH-2.0-x\r\n"))
			},
			"dripping": func(nc net.Conn) {
				for _, b := range []byte("SSH-2.0-" + strings.Repeat("x", 200)) {
					if _, err := nc.Write([]byte{b}); err != nil {
						return
					}
					time.Sleep(deadline / 100) // the line would take twice the deadline
				}
			},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				begin := time.Now()
				nc, err := net.Dial("tcp", server.Addr.String())
				require.NoError(t, err)
				defer func() { _ = nc.Close() }()
				done := make(chan struct{})
				go func() { defer close(done); talk(nc) }()
				closedByServer(t, nc, testTimeout)
				require.Greater(t, time.Since(begin), deadline/2)
				<-done
				server.Log.Wait(t, "ssh login refused", "remote="+nc.LocalAddr().String(),
					fmt.Sprintf(`reason="no login within %v"`, deadline))
			})
		}
	})
	require.Zero(t, run(t, logged, "true", nil).status, "a session is not bound by the deadline")
}

func TestGarbageEndsOnlyItsConnection(t *testing.T) {
	server := sshdtest.Start(t, sshd.Config{})
	noise := make([]byte, 1<<20)
	_, _ = rand.Read(noise)
	var silent string
	for name, data := range map[string][]byte{
		"http":       []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		"version 1":  []byte("SSH-1.5-old\r\n"),
		"noise":      noise,
		"long":       append([]byte("SSH-2.0-"), bytes.Repeat([]byte("x"), 2000)...),
		"many lines": bytes.Repeat([]byte("hello\r\n"), 2000),
		"huge":       []byte("SSH-2.0-x\r\n\x7f\xff\xff\xff"),
		"zero":       []byte("SSH-2.0-x\r\n\x00\x00\x00\x00\x00\x00\x00\x00"),
		"gossip":     {244, 0, 0, 1, 2, 3},
		"closed":     nil,
	} {
		t.Run(name, func(t *testing.T) {
			nc, err := net.Dial("tcp", server.Addr.String())
			require.NoError(t, err)
			defer func() { _ = nc.Close() }()
			if data == nil {
				silent = nc.LocalAddr().String()
			}
			_, _ = nc.Write(data)
			_ = nc.(*net.TCPConn).CloseWrite() // the server may have closed it already
			closedByServer(t, nc, testTimeout)
		})
	}
	require.Zero(t, run(t, server.Dial(t), "true", nil).status)
	server.Log.Wait(t, `level=DEBUG msg="ssh login refused" remote=`+silent+" ") // that nothing was said is no news
	require.NotContains(t, server.Log.String(), "panic")
}

func TestHandshakesQueueAndAreNotDropped(t *testing.T) {
	server := sshdtest.Start(t, sshd.Config{}, func(s *sshd.Server) { s.SetHandshakes(1, 50*time.Millisecond) })
	for range 20 { // silent clients, and clients that stop in the middle
		for _, say := range []string{"", "SSH-2.0-x\r\n"} {
			nc, err := net.Dial("tcp", server.Addr.String())
			require.NoError(t, err)
			t.Cleanup(func() { _ = nc.Close() })
			_, err = nc.Write([]byte(say))
			require.NoError(t, err)
		}
	}
	var group sync.WaitGroup
	for range 50 {
		group.Go(func() {
			client, err := ssh.Dial("tcp", server.Addr.String(), server.ClientConfig())
			if err != nil {
				t.Error(err)
				return
			}
			_ = client.Close()
		})
	}
	group.Wait()
}

func TestKeepaliveEndsSilentConnections(t *testing.T) {
	t.Parallel()
	server := sshdtest.Start(t, sshd.Config{Grace: 20 * time.Millisecond},
		func(s *sshd.Server) { s.SetKeepalive(3 * time.Second) }) // on a busy machine, answers are late
	answering := server.Dial(t)

	nc, err := net.Dial("tcp", server.Addr.String())
	require.NoError(t, err)
	conn, _, _, err := ssh.NewClientConn(nc, "", server.ClientConfig()) // it does not answer global requests
	require.NoError(t, err)
	ch, reqs, err := conn.OpenChannel("session", nil)
	require.NoError(t, err)
	c := channel{ch, reqs}
	require.True(t, c.ask(t, "exec", text("echo $$; sleep 1010")))
	pid := c.pids(t, 1)[0]
	require.Error(t, conn.Wait())
	server.Log.Wait(t, "ssh connection lost", "no answer to a keepalive for 9s")
	gone(t, pid)
	require.Zero(t, run(t, answering, "true", nil).status)
}

// TestManyLoginsAtOnce: none is refused, and each gets its own output. That the server's 30 s suffice for many is left
// to TestParallelLogins, with the real program.
func TestManyLoginsAtOnce(t *testing.T) {
	server := sshdtest.Start(t, sshd.Config{}, func(s *sshd.Server) { s.SetLogin(3 * time.Minute) })
	var group sync.WaitGroup
	for i := range 200 {
		group.Go(func() {
			client, err := ssh.Dial("tcp", server.Addr.String(), server.ClientConfig())
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = client.Close() }()
			session, err := client.NewSession()
			if err != nil {
				t.Error(err)
				return
			}
			out, err := session.Output(fmt.Sprintf("echo %d", i))
			if err != nil || string(out) != fmt.Sprintln(i) {
				t.Error(string(out), err)
			}
		})
	}
	group.Wait()
}

// keeping is a listener that also passes its connections to the test.
type keeping struct {
	net.Listener
	conns chan net.Conn
}

func (l keeping) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.conns <- c
	}
	return c, err
}

// At the end of the job the owner of the port closes open connections, maybe before the server knows.
func TestConnectionTakenAwayIsNoNews(t *testing.T) {
	server := sshdtest.Start(t, sshd.Config{})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l := keeping{ln, make(chan net.Conn, 1)}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	nc, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	defer func() { _ = nc.Close() }()
	_, err = nc.Write([]byte("SSH-2.0-x\r\n"))
	require.NoError(t, err)
	_, err = nc.Read(make([]byte, 1))
	require.NoError(t, err)
	require.NoError(t, (<-l.conns).Close())
	server.Log.Wait(t, "level=DEBUG", "ssh login refused", "use of closed network connection")
	require.NoError(t, ln.Close())
	require.ErrorIs(t, <-served, net.ErrClosed)
}

// hangUp ends a connection without a reset, which closing it with unread bytes would send.
func hangUp(t *testing.T, nc net.Conn) {
	t.Helper()
	require.NoError(t, nc.(*net.TCPConn).CloseWrite())
	_, _ = io.Copy(io.Discard, nc)
	require.NoError(t, nc.Close())
}

// posing is a listener whose connections seem to come from a machine with the address of docker0.
type posing struct {
	net.Listener
	from string
}

func (l posing) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return posed{c, l.from}, err
}

type posed struct {
	net.Conn
	from string
}

func (c posed) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(c.from), Port: 40010} }
func (c posed) LocalAddr() net.Addr  { return &net.TCPAddr{IP: net.ParseIP("172.17.0.1"), Port: 12345} }

// All machines have docker0 with the same address. A call to a peer at that address reaches the caller's own machine.
func TestAMachineThatCallsItselfIsNoNews(t *testing.T) {
	for from, level := range map[string]string{"172.17.0.1": "level=DEBUG", "172.17.0.2": "level=WARN"} {
		server := sshdtest.Start(t, sshd.Config{})
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		served := make(chan error, 1)
		go func() { served <- server.Serve(posing{ln, from}) }()
		nc, err := net.Dial("tcp", ln.Addr().String())
		require.NoError(t, err)
		_, err = nc.Write([]byte("SSH-2.0-x\r\n"))
		require.NoError(t, err)
		_, err = nc.Read(make([]byte, 1))
		require.NoError(t, err)
		hangUp(t, nc)
		line := server.Log.Wait(t, "ssh login refused", "remote="+from)
		require.Contains(t, line, level)
		require.NoError(t, ln.Close())
		require.ErrorIs(t, <-served, net.ErrClosed)
	}
}

// A peer that gives up its login retries and logs the reason itself: on a slow start this causes no warning here. A
// client from outside does, and so does a refused key.
func TestAPeerThatGivesUpIsNoNews(t *testing.T) {
	for _, row := range []struct {
		known bool
		level string
	}{{true, "level=DEBUG"}, {false, "level=WARN"}} {
		server := sshdtest.Start(t, sshd.Config{Known: func(netip.Addr) bool { return row.known }})
		nc, err := net.Dial("tcp", server.Addr.String())
		require.NoError(t, err)
		_, err = nc.Write([]byte("SSH-2.0-x\r\n"))
		require.NoError(t, err)
		_, err = nc.Read(make([]byte, 1))
		require.NoError(t, err)
		hangUp(t, nc)
		line := server.Log.Wait(t, "ssh login refused", "remote="+nc.LocalAddr().String())
		require.Contains(t, line, row.level)
		require.Contains(t, line, `reason="the client closed the connection before a login"`)

		for _, abrupt := range []bool{false, true} {
			server := sshdtest.Start(t, sshd.Config{Known: func(netip.Addr) bool { return row.known }})
			nc, err := net.Dial("tcp", server.Addr.String())
			require.NoError(t, err)
			if abrupt {
				require.NoError(t, nc.(*net.TCPConn).SetLinger(0)) // close resets the connection
			}
			unknown := sshdtest.Key(t)
			cfg := server.ClientConfig()
			cfg.Auth = []ssh.AuthMethod{ssh.PublicKeys(unknown)}
			_, _, _, err = ssh.NewClientConn(nc, "", cfg)
			require.Error(t, err)
			line := server.Log.Wait(t, "ssh login refused", ssh.FingerprintSHA256(unknown.PublicKey()))
			require.Contains(t, line, "level=WARN", "abrupt: %v", abrupt)
		}
	}
}
