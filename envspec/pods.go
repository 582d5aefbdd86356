package envspec

import (
	"fmt"
	"strconv"
	"strings"
)

// Pods of Kubernetes. An Indexed Job, a JobSet or a StatefulSet gives a pod its number and its name. The names of the
// other pods follow from it if there is a headless Service; the number of pods must be given.

// podCount returns the explicit size: Kubernetes does not tell it.
func podCount(r *reader, field string) int {
	size, v, ok := r.number(1, maxTasks, "PAIINIT_SIZE")
	if !ok {
		panic(r.fail(variable{name: "PAIINIT_SIZE"},
			"set PAIINIT_SIZE ("+field+"), or PAIINIT_SYSTEM=single for pods on their own",
			"PAIINIT_SIZE is not set and %s gives no pod count", r.system))
	}
	r.note("size", v)
	return size
}

// addNumberedPods adds size pods, whose names follow from this pod's. It ends in the pod's number or, if there are
// several jobs of each pods, in the job's number and the number within the job.
func addNumberedPods(r *reader, job *Job, size, each int) {
	name := r.ownPod()
	suffix := func(index int) string {
		if each < size || r.has("PAIINIT_JOB_INDEX") {
			return fmt.Sprintf("-%d-%d", index/each, index%each)
		}
		return "-" + strconv.Itoa(index)
	}
	stem, ok := strings.CutSuffix(name.value, suffix(job.Index))
	if !ok || stem == "" {
		panic(r.bad(name, "set PAIINIT_POD_NAME, or PAIINIT_PEERS",
			"does not end in %s (%s): a node's name, or a name cut at 63 characters", quote(suffix(job.Index)),
			r.sources["index"]))
	}
	service := r.subdomain(name.value)
	if master, _ := r.get("MASTER_ADDR"); service == "" {
		if rest, ok := strings.CutPrefix(master.value, stem+suffix(0)+"."); ok {
			service, _, _ = strings.Cut(rest, ".")
		}
	}
	if service == "" && size > 1 {
		panic(r.bad(name, "give the pods a subdomain and a headless Service of that name, or set PAIINIT_PEERS",
			"has no subdomain in /etc/hosts, so the others cannot find it"))
	}
	r.jobID(job, stem, name)
	hosts := make([]string, size)
	for i := range hosts {
		hosts[i] = inDomain(stem+suffix(i), service)
	}
	r.addHosts(job, hosts, name, variable{name: r.sources["size"], value: strconv.Itoa(size)})
}

// inDomain returns the full name of a host; domain may be empty.
func inDomain(host, domain string) string {
	if domain == "" {
		return host
	}
	return host + "." + domain
}

// podName returns this pod's name: PAIINIT_POD_NAME or the host name, which with host networking is the node's.
func (r *reader) podName() variable {
	v, ok := r.get("PAIINIT_POD_NAME", "HOSTNAME")
	if !ok && r.in.Hostname != "" {
		v = variable{name: "HOSTNAME", value: r.in.Hostname}
	}
	v.value, _, _ = strings.Cut(v.value, ".")
	return v
}

// ownPod is podName where the name must be known.
func (r *reader) ownPod() variable {
	v := r.podName()
	r.inPod = true
	if v.name == "" {
		panic(r.missing("set PAIINIT_POD_NAME", "HOSTNAME"))
	}
	return v
}

// subdomain returns the name of this pod's headless Service, or "". The kubelet writes the pod's full name, such as
// pi-1.headless.default.svc.cluster.local, to /etc/hosts.
func (r *reader) subdomain(pod string) string {
	text, _ := r.file("/etc/hosts")
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		for i, name := range strings.Fields(line) {
			rest, ok := strings.CutPrefix(name, pod+".")
			service, domain, _ := strings.Cut(rest, ".")
			if i > 0 && ok && strings.Contains("."+domain+".", ".svc.") {
				return service
			}
		}
	}
	return ""
}
