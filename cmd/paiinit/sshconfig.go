package main

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"

	"github.com/paiinit/paiinit/jobkey"
	"github.com/paiinit/paiinit/rendezvous"
	"github.com/paiinit/paiinit/statedir"
)

// hostKeys derives the public host keys of containers, each once: a key takes 40 µs, and rank 0 needs all of them to
// dial, and again for known_hosts before it launches.
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

// writeSSH writes ssh_config and known_hosts, by which OpenSSH's client finds, checks and enters every rank, unless ctx
// ends: the keys of 512 ranks take 20 ms of a processor of its own, and seconds where 256 ending containers share one.
func (c *container) writeSSH(ctx context.Context, a *agreement) error {
	members, names := a.named()
	var known bytes.Buffer
	for i := range members {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		m := &members[i]
		fmt.Fprintf(&known, "%s %s", m.Alias, ssh.MarshalAuthorizedKey(c.hostKeys.of(c.keys, m.ID)))
	}
	for name, text := range map[string][]byte{
		statedir.KnownHosts: known.Bytes(), statedir.SSHConfig: sshConfig(members, names, c.state.Path),
	} {
		if err := c.state.WriteFile(name, text); err != nil {
			return err
		}
	}
	return nil
}

// sshConfig is written so that it can be included by another one: all of it speaks of the ranks of this job only. The ciphers are those of the
// server: the client decides, and prefers chacha20-poly1305, with which x/crypto/ssh is slower by two fifths on amd64.
func sshConfig(members []rendezvous.Member, names []string, dir string) []byte {
	owners := make(map[string]int) // how many ranks are called so
	for i := range members {
		m := &members[i]
		for _, name := range slices.Compact(slices.Sorted(slices.Values([]string{m.Alias, m.Host, m.Addr.Addr().String()}))) {
			owners[name]++
		}
	}
	var all []string
	var hosts bytes.Buffer
	for i := range members {
		m := &members[i]
		own := []string{names[i]}
		for _, name := range []string{m.Alias, m.Host, m.Addr.Addr().String()} {
			if owners[name] == 1 && !slices.Contains(own, name) && !strings.ContainsAny(name, " \t\"'*?!,#\\") && name != "" {
				own = append(own, name)
			}
		}
		fmt.Fprintf(&hosts, "\nHost %s\n    HostName %s\n    Port %d\n    HostKeyAlias %s\n", strings.Join(own, " "), m.Addr.Addr(), m.Addr.Port(), m.Alias)
		all = append(all, own...)
	}
	return fmt.Appendf(nil, `# For OpenSSH: ssh -F %[1]s/ssh_config HOST, or "Include %[1]s/ssh_config" in another one.
Host %[2]s
    User root
    IdentityAgent "%[1]s/%[3]s"
    IdentityFile none
    UserKnownHostsFile "%[1]s/known_hosts"
    GlobalKnownHostsFile none
    StrictHostKeyChecking yes
    PasswordAuthentication no
    KbdInteractiveAuthentication no
    ServerAliveInterval 15
    Ciphers aes128-gcm@openssh.com,aes256-gcm@openssh.com,chacha20-poly1305@openssh.com,aes256-ctr,aes128-ctr
%[4]s`, dir, strings.Join(all, " "), statedir.KeysSocket, hosts.String())
}
