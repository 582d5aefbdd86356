package envspec

import (
	"fmt"
	"strconv"
	"strings"
)

// Pods of Kubernetes. An Indexed Job, a JobSet or a StatefulSet gives a pod its number and its name. The names of the
// other pods follow from it if there is a headless Service; the number of pods must be given.

// podCount returns the explicit size: Kubernetes does not tell it.
func podCount(r *reader, field string) (int, error) {
	size, v, ok, err := r.number(1, maxTasks, "PAIINIT_SIZE")
	if err == nil && !ok {
		return 0, r.fail(variable{name: "PAIINIT_SIZE"},
			"set PAIINIT_SIZE ("+field+"), or PAIINIT_SYSTEM=single for pods on their own",
			"PAIINIT_SIZE is not set and %s gives no pod count", r.system)
	}
	r.note("size", v)
	return size, err
}

// addNumberedPods adds size pods, whose names follow from this pod's. It ends in the pod's number or, if there are
// several jobs of each pods, in the job's number and the number within the job.
func addNumberedPods(r *reader, job *Job, size, each int) error {
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
		return r.bad(name, "set PAIINIT_POD_NAME, or PAIINIT_PEERS",
			"does not end in %s (%s): a node's name, or a name cut at 63 characters", quote(suffix(job.Index)),
			r.sources["index"])
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
			"has no subdomain in /etc/hosts, so the others cannot find it")
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

// podName returns this pod's name: PAIINIT_POD_NAME or the host name, which with host networking is the node's.
func (r *reader) podName() (variable, bool) {
	v, ok := r.get("PAIINIT_POD_NAME", "HOSTNAME")
	if !ok && r.in.Hostname != "" {
		v, ok = variable{name: "HOSTNAME", value: r.in.Hostname}, true
	}
	if ok {
		v.value, _, _ = strings.Cut(v.value, ".")
	}
	return v, ok
}

// subdomain returns the name of this pod's headless Service, or "". The kubelet writes the pod's full name, such as
// pi-1.headless.default.svc.cluster.local, to /etc/hosts.
func (r *reader) subdomain(pod string) string {
	text, ok := r.file("/etc/hosts")
	if !ok {
		return ""
	}
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		for _, name := range strings.Fields(line)[min(1, len(strings.Fields(line))):] {
			rest, ok := strings.CutPrefix(name, pod+".")
			if service, domain, found := strings.Cut(rest, "."); ok && found &&
				strings.Contains("."+domain+".", ".svc.") {
				return service
			}
		}
	}
	return ""
}
