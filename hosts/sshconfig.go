package hosts

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
)

// SSHFiles holds the absolute paths of the files and sockets that OpenSSH's client needs to reach the hosts.
type SSHFiles struct {
	Config, Agent, KnownHosts string
}

// SSHConfig returns the ssh_config for all hosts. Another ssh_config can include it, because it applies only to the
// hosts of this job. It sets the server's ciphers: the client decides, and would prefer chacha20-poly1305, which is two
// fifths slower in x/crypto/ssh on amd64.
func (b *Book) SSHConfig(files SSHFiles) []byte {
	owners := make(map[string]int) // the number of hosts that have a name
	for _, h := range b.Hosts {
		for _, name := range slices.Compact(slices.Sorted(slices.Values(h.others()))) {
			owners[name]++
		}
	}
	var all []string
	var hosts bytes.Buffer
	for _, h := range b.Hosts {
		own := []string{h.Name}
		for _, name := range h.others() {
			if name != "" && owners[name] == 1 && !slices.Contains(own, name) &&
				!strings.ContainsAny(name, " \t\"'*?!,#\\") {
				own = append(own, name)
			}
		}
		fmt.Fprintf(&hosts, "\nHost %s\n    HostName %s\n    Port %d\n    HostKeyAlias %s\n",
			strings.Join(own, " "), h.Addr.Addr(), h.Addr.Port(), h.Alias)
		all = append(all, own...)
	}
	return fmt.Appendf(nil, `# For OpenSSH: ssh -F %[1]s HOST, or "Include %[1]s" in another one.
Host %[2]s
    User root
    IdentityAgent "%[3]s"
    IdentityFile none
    UserKnownHostsFile "%[4]s"
    GlobalKnownHostsFile none
    StrictHostKeyChecking yes
    PasswordAuthentication no
    KbdInteractiveAuthentication no
    ServerAliveInterval 15
    Ciphers aes128-gcm@openssh.com,aes256-gcm@openssh.com,chacha20-poly1305@openssh.com,aes256-ctr,aes128-ctr
%[5]s`, files.Config, strings.Join(all, " "), files.Agent, files.KnownHosts, hosts.String())
}

// others returns the names of a host besides its name in host lists.
func (h Host) others() []string { return []string{h.Alias, h.Own, h.Addr.Addr().String()} }

// KnownHosts returns the known_hosts that SSHConfig refers to; key returns the host key of an ID as a line of
// authorized_keys. It stops when ctx ends, because deriving hundreds of keys can delay the exit by seconds on a busy
// host.
func (b *Book) KnownHosts(ctx context.Context, key func(id string) []byte) ([]byte, error) {
	var known bytes.Buffer
	for _, h := range b.Hosts {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		fmt.Fprintf(&known, "%s %s", h.Alias, key(h.ID))
	}
	return known.Bytes(), nil
}
