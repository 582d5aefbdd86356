package envspec

import (
	"slices"
	"strings"
)

// readKnownMaster reads containers that know their number, how many there are, and the first one's address.
func readKnownMaster(r *reader, job *Job, master, rank, count []string, gpus string) {
	size, sizeVar, ok := r.number(1, maxTasks, append([]string{"PAIINIT_SIZE"}, count...)...)
	if !ok {
		panic(r.missing("set PAIINIT_SIZE", count...))
	}
	r.soleRole(job, sizeVar)
	if size == 1 && !r.has(append(rank, "PAIINIT_INDEX")...) {
		job.Index = 0
		r.note("index", sizeVar)
	} else {
		r.ownIndex(job, rank...)
	}
	r.countRole(job, job.Role, size, sizeVar)
	r.gpusEach(job, gpus)
	v, ok := r.get(master...)
	local := v.value == "localhost" || v.value == "127.0.0.1"
	switch {
	case size == 1:
	case !ok:
		panic(r.missing("set PAIINIT_PEERS", master...))
	case !local:
		r.addSeed(job, v.value, v)
	case job.Index > 0:
		panic(r.bad(v, "", "but this container is not the first (%s)", r.sources["index"]))
	}
}

// readNodeLines reads a list of addresses, one per line, the master's first. An address may be blank.
func readNodeLines(r *reader, job *Job, list, rank, count, master, gpus string) {
	v := r.need("set PAIINIT_PEERS", list)
	r.soleRole(job, v)
	r.ownIndex(job, rank)
	var hosts []string
	for line := range strings.Lines(v.value) {
		hosts = append(hosts, clean(line))
	}
	size, sizeVar, ok := r.number(1, maxTasks, count)
	switch {
	case ok && len(hosts) > size:
		panic(r.fail(v, "", "%s=%s has %d of %d hosts (%s)", v.name, quote(v.value), len(hosts), size, sizeVar.name))
	case ok && len(hosts) < size: // blank addresses at the end
		hosts = append(hosts, make([]string, size-len(hosts))...)
	}
	if m, ok := r.get(master); ok && hosts[0] != m.value {
		if at := slices.Index(hosts, m.value); at > 0 {
			panic(r.wrong(v, "", "%s=%s is number %d of it, not the first", m.name, quote(m.value), at))
		}
		hosts[0] = m.value
	}
	r.gpusEach(job, gpus)
	if !ok {
		sizeVar = v
	}
	r.addHosts(job, hosts, v, sizeVar)
}
