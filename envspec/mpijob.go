package envspec

import (
	"strconv"
	"strings"
)

// Sources: pkg/controller/mpi_job_controller.go of github.com/kubeflow/mpi-operator; for the first generation
// pkg/controller.v1/mpi of github.com/kubeflow/training-operator (v1.9); for the prototype kubeflow/openmpi of
// github.com/kubeflow/kubeflow up to v0.4, workloads.libsonnet and assets.libsonnet.

const (
	mpiHostfile   = "/etc/mpi/hostfile"
	mpiDiscovery  = "/etc/mpi/discover_hosts.sh"
	mpiKubexec    = "/etc/mpi/kubexec.sh"
	kopenmpiHosts = "/kubeflow/openmpi/assets/hostfile" // of the prototype kubeflow/openmpi
	kopenmpiKey   = "/kubeflow/openmpi/secrets/id_rsa"
)

func matchMPIJob(r *reader) string {
	if name := r.sees("K_MPI_JOB_ROLE"); name != "" {
		return name
	}
	for _, path := range []string{mpiKubexec, kopenmpiHosts} {
		if r.exists(path) {
			return path
		}
	}
	return ""
}

// readMPIJob reads the launcher, which has the list of hosts, and the workers, which have only a name: the launcher's
// name follows from it.
func readMPIJob(r *reader, job *Job) {
	for _, key := range []string{kopenmpiKey, "/root/.ssh/id_rsa"} { // users of the prototype may have copied it
		r.addSecret(job, key)
	}
	role, ok := r.get("K_MPI_JOB_ROLE", "PAIINIT_ROLE")
	switch {
	case (!ok || role.value == "launcher") && r.exists(mpiKubexec):
		// The first generation starts remote processes through the API server: there are no peers to find.
		r.warn("%s: the job reaches hosts by kubectl exec, so this container only runs its command", mpiKubexec)
		r.spread = true
		soleContainer(r, job, variable{name: mpiKubexec, value: mpiKubexec})
	case !ok && r.exists(kopenmpiHosts):
		readMPIPrototype(r, job)
	case !ok:
		panic(r.missing("set PAIINIT_ROLE", "K_MPI_JOB_ROLE"))
	case role.value == "launcher":
		readMPILauncher(r, job, role)
	case role.value == "worker":
		readMPIWorker(r, job, role)
	default:
		panic(r.bad(role, "", "is neither \"launcher\" nor \"worker\""))
	}
}

func readMPILauncher(r *reader, job *Job, role variable) {
	name := r.podName()
	if stem, ok := strings.CutSuffix(name.value, "-launcher"); ok {
		r.jobID(job, stem, name)
	}
	job.Role, job.Index = "launcher", 0
	r.note("role", role)
	r.note("index", role)
	path, text, ok := readMPIHosts(r)
	if !ok {
		panic(r.bad(role, "set PAIINIT_PEERS", "but neither %s nor %s can be read", mpiHostfile, mpiDiscovery))
	}
	list := variable{name: path, value: path}
	launcher, workers, problem := parseMPIHosts(text)
	if problem != "" {
		panic(r.fail(list, "", "%s: %s", path, problem))
	}
	r.note("size", list)
	r.addRole(job, "launcher", []string{launcher.host}, list)
	if launcher.host == "" {
		r.launchOnly["launcher"] = true
	} else if launcher.slots > 0 {
		r.slots[peerKey{"launcher", 0}] = slotCount{launcher.slots, list}
	}
	addMPIWorkers(r, job, workers, list)
}

// readMPIPrototype reads a pod of the prototype, NAME-master or NAME-worker-0. All of them have the list.
func readMPIPrototype(r *reader, job *Job) {
	text, _ := r.file(kopenmpiHosts)
	list := variable{name: kopenmpiHosts, value: kopenmpiHosts}
	_, workers, problem := parseMPIHosts(text)
	if problem != "" {
		panic(r.fail(list, "", "%s: %s", list.name, problem))
	}
	name := r.ownPod()
	role := defaultRole
	id, index, ok := splitWorker(name.value)
	if !ok {
		role, index = "master", 0
		id, ok = strings.CutSuffix(name.value, "-master")
	}
	if !ok {
		panic(r.bad(name, "set PAIINIT_POD_NAME", "is neither NAME-master nor NAME-worker-NUMBER"))
	}
	job.Role, job.Index = role, index
	r.note("role", name)
	r.note("index", name)
	r.jobID(job, id, name)
	r.launchOnly["master"] = true
	_, domain, _ := strings.Cut(workers[0].host, ".")
	r.addRole(job, "master", []string{inDomain(id+"-master", domain)}, list)
	addMPIWorkers(r, job, workers, list)
}

// splitWorker splits "job-worker-index".
func splitWorker(pod string) (job string, index int, ok bool) {
	stem, index, numbered := splitAlias(pod)
	job, isWorker := strings.CutSuffix(stem, "-worker")
	return job, index, numbered && isWorker
}

// addMPIWorkers appends the workers of a host list, with their slots if the list has them.
func addMPIWorkers(r *reader, job *Job, workers []mpiHost, list variable) {
	hosts := make([]string, len(workers))
	for i, w := range workers {
		hosts[i] = w.host
		if w.slots > 0 {
			r.slots[peerKey{defaultRole, i}] = slotCount{w.slots, list}
		}
	}
	r.addRole(job, defaultRole, hosts, list)
}

// readMPIHosts returns the first list of hosts that can be read.
func readMPIHosts(r *reader) (path, text string, ok bool) {
	paths := []string{mpiHostfile, kopenmpiHosts, mpiDiscovery}
	if v, given := r.get("OMPI_MCA_orte_default_hostfile", "I_MPI_HYDRA_HOST_FILE", "HYDRA_HOST_FILE"); given {
		paths = append([]string{v.value}, paths...)
	}
	for _, path := range paths {
		if text, ok := r.file(path); ok && clean(text) != "" {
			return path, text, true
		}
	}
	return "", "", false
}

type mpiHost struct {
	host  string
	slots int // 0 = unknown
}

// parseMPIHosts reads lines "HOST slots=N" (Open MPI), "HOST:N" (Intel MPI, MPICH), "HOST", or "echo HOST" of the
// discovery script. The list contains the launcher if it computes too.
func parseMPIHosts(text string) (launcher mpiHost, workers []mpiHost, problem string) {
	byIndex := make(map[int]mpiHost)
	var plain []mpiHost
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(clean(line))
		if len(fields) > 0 && fields[0] == "echo" {
			fields = fields[1:]
		}
		if len(fields) == 0 {
			continue
		}
		var h mpiHost
		var count string
		h.host, count, _ = strings.Cut(fields[0], ":")
		for _, f := range fields[1:] {
			if n, ok := strings.CutPrefix(f, "slots="); ok {
				count = n
			}
		}
		if problem := checkHost(h.host); problem != "" {
			return launcher, nil, problem
		}
		if count != "" {
			n, err := strconv.Atoi(count)
			if err != nil || n < 1 || n > maxTasks {
				return launcher, nil, "slots of " + quote(h.host) + " are " + quote(count)
			}
			h.slots = n
		}
		pod, _, _ := strings.Cut(h.host, ".")
		_, index, isWorker := splitWorker(pod)
		switch {
		case strings.HasSuffix(pod, "-launcher") || strings.HasSuffix(pod, "-master"):
			launcher = h
		case isWorker:
			if _, dup := byIndex[index]; dup {
				return launcher, nil, quote(h.host) + " occurs twice"
			}
			byIndex[index] = h
		default:
			plain = append(plain, h)
		}
	}
	// The list may be sorted as text, worker-10 before worker-2, or lack workers that are not running yet.
	for i := 0; len(byIndex) > 0; i++ {
		h, ok := byIndex[i]
		if !ok && i > maxTasks {
			return launcher, nil, "the workers' numbers have gaps"
		}
		delete(byIndex, i)
		workers = append(workers, h)
	}
	workers = append(workers, plain...)
	if len(workers) == 0 {
		return launcher, nil, "no workers"
	}
	return launcher, workers, ""
}

func readMPIWorker(r *reader, job *Job, role variable) {
	job.Role = defaultRole
	r.note("role", role)
	name := r.ownPod()
	id, index, isWorker := splitWorker(name.value)
	if !isWorker {
		panic(r.bad(name, "set PAIINIT_POD_NAME from metadata.name",
			"is not JOB-worker-NUMBER, from which a worker of an MPIJob derives its launcher"))
	}
	r.jobID(job, id, name)
	r.scheduledIndex(job, index, name)
	r.launchOnly["launcher"] = true // if it computes too, workers do not know
	r.countRole(job, "launcher", 1, role)
	size, v, ok := r.number(2, maxTasks, "PAIINIT_SIZE")
	if !ok {
		r.openSize = true
		v = variable{name: "known to the launcher"}
	}
	r.note("size", v)
	r.countRole(job, defaultRole, size-1, v) // -1 = unknown
	r.addSeed(job, id+"-launcher."+id, name)
}
