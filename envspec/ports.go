package envspec

import (
	"cmp"
	"strings"
)

// port returns the explicit port.
func (r *reader) port() (int, variable, bool) { return r.number(1, 65535, "PAIINIT_PORT") }

// usualPort returns the port of containers whose scheduler gives them none: the explicit one, the job's, or the
// default.
func (r *reader) usualPort() int {
	port, _, _ := r.port()
	return cmp.Or(port, r.jobPort, defaultPort)
}

// spreadPorts gives every container a port if the scheduler gives none: the usual port, and consecutive ports to
// containers that share a host. All containers derive the same ports.
func spreadPorts(r *reader, job *Job) {
	if !r.spread {
		return
	}
	port := r.usualPort()
	taken := make(map[string]int)
	for i := range job.Peers {
		p := &job.Peers[i]
		if p.Host == "" || p.Port != 0 {
			continue
		}
		host := strings.ToLower(p.Host)
		p.Port = port + taken[host]
		taken[host]++
		if p.Port > 65535 {
			v := r.origin[peerKey{p.Role, p.Index}]
			panic(r.wrong(v, "", "%s occurs %d times, more than there are ports after %d", quote(p.Host), taken[host],
				port))
		}
	}
}

// choosePort sets this container's port: the explicit port, the port that the others expect, or the default.
func choosePort(r *reader, job *Job) {
	self := new(Peer)
	for i, p := range job.Peers {
		if p.Role == job.Role && p.Index == job.Index {
			self = &job.Peers[i]
		}
	}
	self.Slots = job.Slots
	from := r.origin[peerKey{job.Role, job.Index}]
	port, v, ok := r.port()
	switch {
	case ok && self.Port != 0 && r.spread:
		job.Port = self.Port // spreadPorts counted from the explicit one
		r.note("port", v)
	case ok && self.Port != 0 && self.Port != port && r.has("PAIINIT_PEERS"):
		panic(r.fail(v, "leave one of them out", "%s=%d but %s gives %s port %d", v.name, port, from.name,
			job.Alias, self.Port))
	case ok:
		if self.Port != 0 && self.Port != port {
			r.warn("%s=%d, but the others expect %s at port %d (%s)", v.name, port, job.Alias, self.Port, from.name)
		}
		job.Port = port
		r.note("port", v)
	case self.Port != 0:
		job.Port = self.Port
		if r.sources["port"] == "" {
			r.note("port", from)
		}
		if r.spread && job.Port == defaultPort && r.jobPort == 0 {
			r.sources["port"] = "default"
		}
	case job.Port == 0:
		job.Port = defaultPort
		r.sources["port"] = "default"
	}
	self.Port = job.Port
}
