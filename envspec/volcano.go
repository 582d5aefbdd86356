package envspec

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// Volcano's svc plugin lists the hosts of every task in files, and in variables with the task's name in upper case.
// Sources: pkg/controllers/job/plugins of github.com/volcano-sh/volcano.

func matchVolcano(r *reader) string { return r.sees("VC_TASK_INDEX", "VK_TASK_INDEX") }

// volcanoTask is one list of hosts, in the order of their numbers.
type volcanoTask struct {
	name  string
	hosts []string
	from  variable
}

func readVolcano(r *reader, job *Job) {
	name := r.ownPod()
	r.ownIndex(job, "VC_TASK_INDEX", "VK_TASK_INDEX")
	tasks := volcanoTasks(r)
	own, ownHost := "", ""
	for _, t := range tasks {
		if _, dup := r.counts[t.name]; dup || !isRoleName(t.name) {
			panic(r.wrong(t.from, "", "%s is not the name of one task", quote(t.name)))
		}
		r.addRole(job, t.name, t.hosts, t.from)
		for i, host := range t.hosts {
			if pod, _, _ := strings.Cut(host, "."); pod == name.value && i == job.Index {
				own, ownHost = t.name, host
			}
		}
	}
	first := tasks[0]
	if own == "" && !r.has("PAIINIT_ROLE") {
		panic(r.bad(name, "set PAIINIT_ROLE, or PAIINIT_POD_NAME", "is not number %d of any task (%s)", job.Index,
			first.from.name))
	}
	if _, service, ok := strings.Cut(first.hosts[0], "."); ok {
		id, _, _ := strings.Cut(service, ".")
		r.jobID(job, id, first.from)
	}
	// The mpi plugin gives the master the hosts that compute.
	if mpi, ok := r.get("MPI_HOST"); ok && ownHost != "" && !slices.Contains(strings.Split(mpi.value, ","), ownHost) {
		r.ownSlots = slotCount{0, mpi}
	}
	// The key is the ssh plugin's, not the image's, if the config names this pod.
	config, _ := r.file("/root/.ssh/config")
	if strings.Contains(config+"\n", "Host "+name.value+"\n") {
		r.addSecret(job, "/root/.ssh/id_rsa")
	}
	r.ownRole(job, own, name, first.from)
}

// volcanoTasks reads the lists. Volcano does not tell their order in the job: launchers come first, then the alphabet.
func volcanoTasks(r *reader) (tasks []volcanoTask) {
	// Users can turn off the variables, which may grow too long. The files are always there.
	const dir = "/etc/volcano"
	for _, file := range r.entries(dir) {
		path := dir + "/" + file
		name, isList := strings.CutSuffix(file, ".host")
		text, ok := r.file(path)
		if hosts := strings.Fields(text); isList && ok && len(hosts) > 0 {
			from := variable{name: path, value: clean(text)}
			tasks = append(tasks, volcanoTask{volcanoName(name, hosts[0]), hosts, from})
		}
	}
	fromFiles := len(tasks) > 0
	for _, env := range slices.Sorted(maps.Keys(r.vars)) {
		name, isList := strings.CutSuffix(env, "_HOSTS")
		name, isVolcano := strings.CutPrefix(name, "VC_")
		if !isList || !isVolcano || fromFiles {
			continue
		}
		v, ok := r.get(env)
		if !ok {
			continue // a task without pods
		}
		hosts := r.items(v, ",")
		tasks = append(tasks, volcanoTask{volcanoName(name, hosts[0]), hosts, v})
	}
	if len(tasks) == 0 {
		panic(r.missing("turn on the svc plugin of the job, or set PAIINIT_PEERS", "VC_<task>_HOSTS",
			dir+"/<task>.host"))
	}
	// Sorted by hand: the tasks are few, and slices.SortFunc of this type would add 18 kB to the program.
	before := func(a, b volcanoTask) bool {
		return cmp.Or(cmp.Compare(volcanoClass(a.name), volcanoClass(b.name)), cmp.Compare(a.name, b.name)) < 0
	}
	for i := range tasks {
		for ; i > 0 && before(tasks[i], tasks[i-1]); i-- {
			tasks[i], tasks[i-1] = tasks[i-1], tasks[i]
		}
	}
	return tasks
}

// volcanoName returns a task's name as the job spells it, from its first host, if that has the form JOB-TASK-0.JOB.
func volcanoName(variable, host string) string {
	pod, service, _ := strings.Cut(host, ".")
	service, _, _ = strings.Cut(service, ".")
	stem, _, _ := splitAlias(pod)
	if name, ok := strings.CutPrefix(stem, service+"-"); ok && name != "" {
		return name
	}
	return strings.ReplaceAll(strings.ToLower(variable), "_", "-")
}

// volcanoClass puts tasks with names such as mpimaster first.
func volcanoClass(name string) int {
	launchers := []string{"master", "launcher", "leader", "chief", "head"}
	if slices.ContainsFunc(launchers, func(l string) bool { return strings.Contains(strings.ToLower(name), l) }) {
		return 0
	}
	return 1
}
