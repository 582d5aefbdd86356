package envspec

import (
	"cmp"
	"strings"
)

// port returns the explicit port.
func (r *reader) port() (int, variable, bool, error) { return r.number(1, 65535, "PAIINIT_PORT") }

// usualPort returns the port of containers whose scheduler gives them none: the explicit one, the job's, or the
// default.
func (r *reader) usualPort() (int, error) {
	port, _, ok, err := r.port()
	if !ok {
		port = cmp.Or(r.jobPort, defaultPort)
	}
	return port, err
}

// spreadPorts gives every container a port if the scheduler gives none: the usual one, and to containers that share a
// host the following ones. All containers derive the same ports.
func spreadPorts(r *reader, job *Job) error {
	if !r.spread {
		return nil
	}
	port, err := r.usualPort()
	if err != nil {
		return err
	}
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
			return r.wrong(v, "", "%s occurs %d times, more than there are ports after %d", quote(p.Host), taken[host],
				port)
		}
	}
	return nil
}

// choosePort sets this container's port: the explicit port, the port that the others expect, or the default.
func choosePort(r *reader, job *Job) error {
	self := -1
	for i, p := range job.Peers {
		if p.Role == job.Role && p.Index == job.Index {
			self = i
			job.Peers[i].Slots = job.Slots
		}
	}
	port, v, ok, err := r.port()
	switch {
	case err != nil:
		return err
	case ok && self >= 0 && r.spread && job.Peers[self].Port != 0:
		job.Port = job.Peers[self].Port // spreadPorts counted from the explicit one
		r.note("port", v)
	case ok && self >= 0 && job.Peers[self].Port != 0 && job.Peers[self].Port != port:
		from := r.origin[peerKey{job.Role, job.Index}]
		if r.has("PAIINIT_PEERS") {
			return r.fail(v, "leave one of them out", "%s=%d but %s gives %s port %d", v.name, port, from.name,
				job.Alias, job.Peers[self].Port)
		}
		r.warn("%s=%d, but the others expect %s at port %d (%s)", v.name, port, job.Alias, job.Peers[self].Port,
			from.name)
		fallthrough
	case ok:
		job.Port = port
		r.note("port", v)
	case self >= 0 && job.Peers[self].Port != 0:
		job.Port = job.Peers[self].Port
		if r.sources["port"] == "" {
			r.note("port", r.origin[peerKey{job.Role, job.Index}])
		}
		if r.spread && job.Port == defaultPort && r.jobPort == 0 {
			r.sources["port"] = "default"
		}
	case job.Port == 0:
		job.Port = defaultPort
		r.sources["port"] = "default"
	}
	if self >= 0 {
		job.Peers[self].Port = job.Port
	}
	return nil
}
