package hosts

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

// SSHFiles are the absolute paths of the files and sockets by which OpenSSH's client reaches the hosts.
type SSHFiles struct {
	Config, Agent, KnownHosts string
}

// SSHConfig is the ssh_config for all hosts. It is written so that another one can include it: all of it is about the
// hosts of this job only. The ciphers are those of the server: the client decides, and prefers chacha20-poly1305, with
// which x/crypto/ssh is slower by two fifths on amd64.
func (b *Book) SSHConfig(files SSHFiles) []byte {
	owners := make(map[string]int) // how many hosts have a name
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
			if owners[name] == 1 && !slices.Contains(own, name) && !strings.ContainsAny(name, " \t\"'*?!,#\\") && name != "" {
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

// others are the names beside the one in host lists.
func (h Host) others() []string { return []string{h.Alias, h.Own, h.Addr.Addr().String()} }
