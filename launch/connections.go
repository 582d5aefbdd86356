package launch

import (
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Connections are the TCP connections of processes in this container with other hosts.
type Connections struct {
	Known     bool  // the files of at least one of the processes could be read
	Open      int   // established connections
	Listening []int // ports at which the processes wait for further ones
}

// ReadConnections returns the connections of processes.
func ReadConnections(pids []int) Connections { return connections(os.DirFS("/proc"), pids) }

func connections(fsys fs.FS, pids []int) (c Connections) {
	for _, pid := range pids {
		dir := strconv.Itoa(pid)
		files, err := fs.ReadDir(fsys, dir+"/fd")
		if err != nil {
			continue
		}
		c.Known = true
		var own []string // inodes of its sockets
		for _, f := range files {
			to, err := fs.ReadLink(fsys, dir+"/fd/"+f.Name())
			if inode, ok := strings.CutPrefix(to, "socket:["); ok && err == nil {
				own = append(own, strings.TrimSuffix(inode, "]"))
			}
		}
		for _, table := range []string{"/net/tcp", "/net/tcp6"} {
			text, _ := fs.ReadFile(fsys, dir+table) // a kernel without IPv6 has no tcp6
			for line := range strings.Lines(string(text)) {
				if fields := strings.Fields(line); len(fields) > 9 && slices.Contains(own, fields[9]) {
					c.add(fields[1], fields[2], fields[3])
				}
			}
		}
	}
	slices.Sort(c.Listening)
	c.Listening = slices.Compact(c.Listening)
	return c
}

// add counts a line of /proc/net/tcp: its local address, remote address and state (proc_pid_net(5)).
func (c *Connections) add(local, remote, state string) {
	const established, listen = "01", "0A"
	switch at, with := tableAddr(local), tableAddr(remote); {
	case state == established && !with.Addr().IsLoopback():
		c.Open++
	case state == listen && !at.Addr().IsLoopback():
		c.Listening = append(c.Listening, int(at.Port()))
	}
}

// tableAddr reads an address of /proc/net/tcp: words of 32 bits in the byte order of this machine, and a port.
func tableAddr(text string) netip.AddrPort {
	words, port, _ := strings.Cut(text, ":")
	b, err := hex.DecodeString(words)
	n, errPort := strconv.ParseUint(port, 16, 16)
	if err != nil || errPort != nil {
		return netip.AddrPort{}
	}
	for word := range slices.Chunk(b, 4) { // both of our architectures are little-endian
		slices.Reverse(word)
	}
	addr, _ := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(addr.Unmap(), uint16(n))
}

// tellSilence warns if a launcher has started its daemons on other hosts, but they have not connected to it, and so its
// ranks do not start: a firewall that admits only paiinit's port lets mpirun wait silently for minutes.
func (w *watch) tellSilence() {
	w.silent = nil
	pids := w.launchersSince(w.begunAt)
	open, detached := w.Sessions.daemons()
	if len(pids) == 0 || open == 0 && !detached {
		return
	}
	c := w.Connections(pids)
	missing := c.Open == 0 || c.Open < open && len(Ranks(w.Processes(), w.Own)) == 0
	if !c.Known || !missing {
		return
	}
	w.silenceTold = true
	attrs := []any{"phase", "wait", "command", w.Line[0], "daemons", open, "connected", c.Open, "ago", silenceTime,
		"hint", "the daemons connect to the launcher, and the ranks to each other, at random ports: allow all TCP " +
			"between the hosts of the job, or set a port range (docs/launchers.md)"}
	if len(c.Listening) > 0 {
		ports := strings.Trim(fmt.Sprint(c.Listening), "[]")
		attrs = append(attrs, "ports", ports)
	}
	if blocked := w.blocked.Load(); blocked != nil {
		attrs = append(attrs, "err", *blocked)
	}
	w.Log.Warn("a launcher waits for its daemons on other hosts: they run, but have not connected to this host",
		attrs...)
}
