package envspec

import (
	"slices"
	"strings"
)

// Source: runner/internal/executor/executor.go of github.com/dstackai/dstack.

func matchDstack(r *reader) string { return r.sees("DSTACK_NODE_RANK") }

func readDstack(r *reader, job *Job) error {
	r.readID(job, "DSTACK_RUN_ID", "DSTACK_RUN_NAME")
	return r.nodeLines(job, "DSTACK_NODES_IPS", "DSTACK_NODE_RANK", "DSTACK_NODES_NUM", "DSTACK_MASTER_NODE_IP", "DSTACK_GPUS_PER_NODE")
}

// nodeLines reads a list of addresses on lines, the first being the master's. An address may be blank.
func (r *reader) nodeLines(job *Job, list, rank, count, master, gpus string) error {
	v, ok := r.get(list)
	if !ok {
		return r.missing("set PAIINIT_PEERS", list)
	}
	if err := r.soleRole(job, v); err != nil {
		return err
	}
	if err := r.ownIndex(job, rank); err != nil {
		return err
	}
	var hosts []string
	for line := range strings.Lines(v.value) {
		hosts = append(hosts, clean(line))
	}
	size, sizeVar, ok, err := r.number(1, maxTasks, count)
	switch {
	case err != nil:
		return err
	case ok && len(hosts) > size:
		return r.fail(v, "", "%s=%s has %d of %d hosts (%s)", v.name, quote(v.value), len(hosts), size, sizeVar.name)
	case ok && len(hosts) < size: // blank ones at the end
		hosts = append(hosts, make([]string, size-len(hosts))...)
	}
	if m, ok := r.get(master); master != "" && ok && hosts[0] != m.value {
		if at := slices.Index(hosts, m.value); at > 0 {
			return r.wrong(v, "", "%s=%s is number %d of it, not the first", m.name, quote(m.value), at)
		}
		hosts[0] = m.value
	}
	r.gpusEach(job, gpus)
	if err := r.addRole(job, job.Role, hosts, v); err != nil {
		return err
	}
	if ok {
		r.counts[job.Role] = sizeVar
	}
	return nil
}
