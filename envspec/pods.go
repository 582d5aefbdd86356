package envspec

import (
	"fmt"
	"strconv"
	"strings"
)

// Plain Kubernetes: what a pod of an Indexed Job, a JobSet or a StatefulSet is told is its number and its name. The names
// of the others follow from its own, given a headless Service; how many there are nobody tells.

// podCount is the explicit size, which nothing else tells.
func (r *reader) podCount(field string) (int, error) {
	size, v, ok, err := r.number(1, maxTasks, "PAIINIT_SIZE")
	if err == nil && !ok {
		return 0, r.fail(variable{name: "PAIINIT_SIZE"}, "set PAIINIT_SIZE ("+field+"), or PAIINIT_SYSTEM=single for pods on their own", "PAIINIT_SIZE is not set and %s gives no pod count", r.system)
	}
	r.note("size", v)
	return size, err
}

// numberedPods lists size pods by the own one's name. It ends in the number, or, if there are several jobs of each pods, in
// the job's number and the one within the job.
func (r *reader) numberedPods(job *Job, size, each int) error {
	name, ok := r.podName()
	if !ok {
		return r.missing("set PAIINIT_POD_NAME", "HOSTNAME")
	}
	suffix := func(index int) string {
		if each < size || r.has("PAIINIT_JOB_INDEX") {
			return fmt.Sprintf("-%d-%d", index/each, index%each)
		}
		return "-" + strconv.Itoa(index)
	}
	stem, ok := strings.CutSuffix(name.value, suffix(job.Index))
	if !ok || stem == "" {
		return r.bad(name, "set PAIINIT_POD_NAME, or PAIINIT_PEERS", "does not end in %s (%s): a node's name, or a name cut at 63 characters",
			quote(suffix(job.Index)), r.sources["index"])
	}
	service := r.subdomain(name.value)
	if master, ok := r.get("MASTER_ADDR"); ok && service == "" {
		rest, ok := strings.CutPrefix(master.value, stem+suffix(0)+".")
		if service, _, _ = strings.Cut(rest, "."); !ok {
			service = ""
		}
	}
	if service == "" && size > 1 {
		return r.bad(name, "give the pods a subdomain and a headless Service of that name, or set PAIINIT_PEERS",
			"has no subdomain in /etc/hosts, by which others could find it")
	}
	r.jobID(job, stem, name)
	hosts := make([]string, size)
	for i := range hosts {
		hosts[i] = stem + suffix(i)
		if service != "" {
			hosts[i] += "." + service
		}
	}
	if err := r.addRole(job, job.Role, hosts, name); err != nil {
		return err
	}
	r.counts[job.Role] = variable{name: r.sources["size"], value: strconv.Itoa(size)}
	return nil
}
