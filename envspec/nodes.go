package envspec

import (
	"slices"
	"strings"
)

// readKnownMaster reads containers that know their number, how many there are, and the first one's address.
func readKnownMaster(r *reader, job *Job, master, rank, count []string, gpus string) error {
	size, sizeVar, ok, err := r.number(1, maxTasks, append([]string{"PAIINIT_SIZE"}, count...)...)
	switch {
	case err != nil:
		return err
	case !ok:
		return r.missing("set PAIINIT_SIZE", count...)
	}
	if err := r.soleRole(job, sizeVar); err != nil {
		return err
	}
	if size == 1 && !r.has(append(rank, "PAIINIT_INDEX")...) {
		job.Index = 0
		r.note("index", sizeVar)
	} else if err := r.ownIndex(job, rank...); err != nil {
		return err
	}
	r.countRole(job, job.Role, size, sizeVar)
	if gpus != "" {
		r.gpusEach(job, gpus)
	}
	v, ok := r.get(master...)
	if size == 1 {
		return nil
	}
	if !ok {
		return r.missing("set PAIINIT_PEERS", master...)
	}
	if v.value == "localhost" || v.value == "127.0.0.1" {
		if job.Index > 0 {
			return r.bad(v, "", "but this container is not the first (%s)", r.sources["index"])
		}
		return nil
	}
	return r.addSeed(job, v.value, v)
}

// readNodeLines reads a list of addresses, one per line, the master's first. An address may be blank.
func readNodeLines(r *reader, job *Job, list, rank, count, master, gpus string) error {
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
	case ok && len(hosts) < size: // blank addresses at the end
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
