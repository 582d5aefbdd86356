// Package attack attacks the port of a container without a key: it opens many connections that send nothing, little,
// garbage or too much to the SSH server, to gossip or to the server for probes.
package attack

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/paiinit/paiinit/rsh"
)

// Attack opens connections from several addresses and sends data on each, or nothing.
type Attack struct {
	Name        string
	Connections int  // number of connections at the same time
	Gossip      bool // sends gossip, which only a container that waits for others reads
	HTTP        bool // sends requests, which only a container with --http answers

	rank    bool                     // connects from the address of a rank
	sources int                      // number of addresses to connect from, without rank
	say     func(*Running, net.Conn) // sends the data on one connection
	again   bool                     // reconnects after the server closes a connection
}

// All returns every attack.
func All() []Attack {
	noise := make([]byte, 64<<10)
	_, _ = rand.Read(noise) // never fails
	hello := []byte("SSH-2.0-x\r\n")
	return []Attack{
		{Name: "silent", Connections: 1000, sources: 4},
		{Name: "3,000 silent", Connections: 3000, sources: 5},
		{Name: "slow", Connections: 300, sources: 1,
			say: slowly(bytes.Repeat([]byte("SSH-2.0-"), 30), 50*time.Millisecond)},
		{Name: "garbage", Connections: 30, sources: 3, again: true, say: send(noise)},
		{Name: "http", Connections: 30, sources: 3, again: true,
			say: send([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))},
		{Name: "oversized identification", Connections: 30, sources: 3, again: true,
			say: send([]byte("SSH-2.0-"), bytes.Repeat([]byte("x"), 1<<20))},
		{Name: "oversized packet", Connections: 30, sources: 3, again: true,
			say: send(hello, []byte{0x7f, 0xff, 0xff, 0xff}, noise)},
		{Name: "largest packet", Connections: 300, sources: 3, again: true,
			say: send(hello, []byte{0, 3, 0xff, 0xfc, 4, 20}, noise)},
		{Name: "half-open", Connections: 1000, sources: 4, say: send(hello)},
		{Name: "half-open from 100 addresses", Connections: 1100, sources: 100, say: send(hello)},
		{Name: "wrong keys", Connections: 30, sources: 3, again: true, say: logIn},
		{Name: "10,000 connections", Connections: 10000, sources: 100},
		{Name: "gossip", Connections: 100, Gossip: true, sources: 5, again: true, say: gossip},
		{Name: "gossip from a rank", Connections: 100, Gossip: true, rank: true, again: true, say: gossip},
		{Name: "silent gossip", Connections: 1100, Gossip: true, sources: 5, say: send([]byte{gossipByte})},
		{Name: "gossip to a container without gossip", Connections: 1100, sources: 5, say: send([]byte{gossipByte})},
		// The server for probes keeps 128 connections, 32 from one address.
		{Name: "1,000 probes a second", Connections: 70, HTTP: true, sources: 10, again: true,
			say: later(70*time.Millisecond, request+"\r\n")},
		{Name: "half requests", Connections: 140, HTTP: true, sources: 5, again: true, say: send([]byte(request))},
		{Name: "slow requests", Connections: 35, HTTP: true, sources: 1, again: true,
			say: slowly([]byte(request+"\r\n"), 100*time.Millisecond)},
	}
}

// request is a probe, but for the empty line at its end.
const request = "GET /readyz HTTP/1.1\r\nHost: x\r\n"

// later sends the data after a while, so that connections that are opened again have a rate.
func later(pause time.Duration, data string) func(*Running, net.Conn) {
	return func(r *Running, nc net.Conn) {
		select {
		case <-r.ctx.Done():
		case <-time.After(pause):
			_, _ = nc.Write([]byte(data)) // fails if the server closed it
		}
	}
}

func send(data ...[]byte) func(*Running, net.Conn) {
	return func(_ *Running, nc net.Conn) { _, _ = nc.Write(bytes.Join(data, nil)) } // fails if the server closed it
}

// gossipByte begins a stream with a label, encryptedByte an encrypted message (memberlist v0.7 label.go, net.go).
const gossipByte, encryptedByte = 244, 10

// gossip sends the largest message that memberlist reads, with the label of the job.
func gossip(r *Running, nc net.Conn) {
	const most = 20 << 20
	b := append([]byte{gossipByte, byte(len(r.label))}, r.label...)
	b = binary.BigEndian.AppendUint32(append(b, encryptedByte), most)
	if _, err := nc.Write(b); err == nil {
		zeros := make([]byte, 64<<10)
		for n := 0; err == nil && n < most; n += len(zeros) {
			_, err = nc.Write(zeros)
		}
	}
}

func slowly(data []byte, pause time.Duration) func(*Running, net.Conn) {
	return func(r *Running, nc net.Conn) {
		for _, b := range data {
			if _, err := nc.Write([]byte{b}); err != nil {
				return
			}
			select {
			case <-r.ctx.Done():
				return
			case <-time.After(pause):
			}
		}
	}
}

func logIn(r *Running, nc net.Conn) {
	client, _, _, err := ssh.NewClientConn(nc, "", &ssh.ClientConfig{
		User: "root", HostKeyCallback: ssh.InsecureIgnoreHostKey(), Auth: []ssh.AuthMethod{ssh.PublicKeys(r.key)},
	})
	if err == nil {
		r.in.Store(true)
		_ = client.Close()
	}
}

// Running is an attack that continues until Stop.
type Running struct {
	ctx    context.Context
	cancel context.CancelFunc
	group  sync.WaitGroup
	key    ssh.Signer // no server accepts it
	label  string
	opened atomic.Int64
	in     atomic.Bool
}

// Start attacks a server of this machine, and returns after opening each of its connections once.
func (a Attack) Start(ctx context.Context, addr string) (*Running, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	r := &Running{}
	if r.key, err = ssh.NewSignerFromKey(private); err != nil {
		return nil, err
	}
	if a.Gossip {
		at, err := netip.ParseAddrPort(addr)
		if err != nil {
			return nil, err
		}
		label, _, err := rsh.Listener(ctx, at)
		if err != nil {
			return nil, err
		}
		r.label = rsh.Comment(label, "gossip")
	}
	r.ctx, r.cancel = context.WithCancel(ctx)
	var first sync.WaitGroup
	first.Add(a.Connections)
	for i := range a.Connections {
		var dialer net.Dialer
		if !a.rank {
			dialer.LocalAddr = &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(1+i%a.sources))}
		}
		r.group.Go(func() { a.run(r, dialer, addr, sync.OnceFunc(first.Done)) })
	}
	first.Wait()
	if ctx.Err() != nil {
		return nil, errors.Join(context.Cause(ctx), r.Stop())
	}
	return r, nil
}

// Opened counts the connections opened so far.
func (r *Running) Opened() int { return int(r.opened.Load()) }

// Stop ends the attack. It returns an error if the attack logged in.
func (r *Running) Stop() error {
	r.cancel()
	r.group.Wait()
	if r.in.Load() {
		return errors.New("logged in with a key that the server does not know")
	}
	return nil
}

// run opens one connection or, with again, one after another.
func (a Attack) run(r *Running, dialer net.Dialer, addr string, opened func()) {
	defer opened()
	for r.ctx.Err() == nil {
		nc, err := dialer.DialContext(r.ctx, "tcp", addr)
		if err != nil {
			continue // a full accept queue of the kernel belongs to the attack
		}
		end := context.AfterFunc(r.ctx, func() { _ = nc.Close() })
		r.opened.Add(1)
		opened()
		if a.say != nil {
			a.say(r, nc)
		}
		_, _ = io.Copy(io.Discard, nc) // until the server or Stop closes it
		_ = nc.Close()
		end()
		if !a.again {
			return
		}
	}
}
