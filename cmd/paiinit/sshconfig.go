package main

import (
	"bytes"
	"context"
	"fmt"
	"sync"

	"golang.org/x/crypto/ssh"

	"github.com/paiinit/paiinit/hosts"
	"github.com/paiinit/paiinit/jobkey"
	"github.com/paiinit/paiinit/statedir"
)

// hostKeys derives and caches the public host keys of containers: rank 0 needs all of them to dial, and again for
// known_hosts before the launch.
type hostKeys struct {
	mu   sync.Mutex
	byID map[string]ssh.PublicKey
}

// of returns the public host key of a container.
func (h *hostKeys) of(keys *jobkey.Keys, id string) ssh.PublicKey {
	h.mu.Lock()
	key, ok := h.byID[id]
	h.mu.Unlock()
	if ok {
		return key
	}
	key = keys.Host(id).PublicKey()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.byID == nil {
		h.byID = make(map[string]ssh.PublicKey)
	}
	h.byID[id] = key
	return key
}

// writeSSH writes ssh_config and known_hosts, with which OpenSSH's client can log in to every rank. It stops when ctx
// ends, because deriving hundreds of keys can delay the exit by seconds on a busy host.
func (a *agreement) writeSSH(ctx context.Context) error {
	var known bytes.Buffer
	for _, h := range a.book().Hosts {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		fmt.Fprintf(&known, "%s %s", h.Alias, ssh.MarshalAuthorizedKey(a.hostKeys.of(a.keys, h.ID)))
	}
	files := hosts.SSHFiles{
		Config: a.state.File(statedir.SSHConfig), Agent: a.state.File(statedir.KeysSocket),
		KnownHosts: a.state.File(statedir.KnownHosts),
	}
	for name, text := range map[string][]byte{
		statedir.KnownHosts: known.Bytes(), statedir.SSHConfig: a.book().SSHConfig(files),
	} {
		if err := a.state.WriteFile(name, text); err != nil {
			return err
		}
	}
	return nil
}
