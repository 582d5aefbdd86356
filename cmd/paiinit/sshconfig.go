package main

import (
	"bytes"
	"context"
	"fmt"
	"sync"

	"golang.org/x/crypto/ssh"

	"github.com/paiinit/paiinit/hosts"
	"github.com/paiinit/paiinit/statedir"
)

// haveSSHFiles makes sure that ssh_config and known_hosts are there, if they can be: before a command or a session starts, else a
// second after the commit. The keys of 64 ranks take milliseconds, in which every rank wants to start its part of the job.
func (c *container) haveSSHFiles() {
	c.mu.Lock()
	write := c.sshFiles
	c.mu.Unlock()
	if write != nil {
		write()
	}
}

// hostKeys are the public host keys that were derived already: each takes 40 µs, and rank 0 needs all of them to dial, and again to write
// them down before it launches.
type hostKeys struct {
	mu   sync.Mutex
	byID map[string]ssh.PublicKey
}

// hostKey is the public host key of a container.
func (c *container) hostKey(id string) ssh.PublicKey {
	h := &c.hostKeys
	h.mu.Lock()
	key, ok := h.byID[id]
	h.mu.Unlock()
	if ok {
		return key
	}
	key = c.keys.Host(id).PublicKey()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.byID == nil {
		h.byID = make(map[string]ssh.PublicKey)
	}
	h.byID[id] = key
	return key
}

// writeSSH writes ssh_config and known_hosts, by which OpenSSH's client finds, checks and enters every rank, unless ctx
// ends: the keys of 512 ranks take 20 ms of a processor of its own, and seconds where 256 ending containers share one.
func (c *container) writeSSH(ctx context.Context) error {
	book := c.hostBook()
	var known bytes.Buffer
	for _, h := range book.Hosts {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		fmt.Fprintf(&known, "%s %s", h.Alias, ssh.MarshalAuthorizedKey(c.hostKey(h.ID)))
	}
	files := hosts.SSHFiles{
		Config: c.state.File(statedir.SSHConfig), Agent: c.state.File(statedir.KeysSocket),
		KnownHosts: c.state.File(statedir.KnownHosts),
	}
	for name, text := range map[string][]byte{
		statedir.KnownHosts: known.Bytes(), statedir.SSHConfig: book.SSHConfig(files),
	} {
		if err := c.state.WriteFile(name, text); err != nil {
			return err
		}
	}
	return nil
}
