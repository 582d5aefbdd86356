package envspec

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// clusterSpec is the form of TF_CONFIG and CLUSTER_SPEC. The ports in it are TensorFlow's: paiinit uses its own.
type clusterSpec struct {
	Cluster map[string]json.RawMessage `json:"cluster"`
	Task    struct {
		Type  string          `json:"type"`
		Index json.RawMessage `json:"index"`
	} `json:"task"`
}

func parseCluster(r *reader, v variable) (spec clusterSpec) {
	if err := json.Unmarshal([]byte(v.value), &spec); err != nil {
		panic(r.badJSON(v, err))
	}
	return spec
}

// index returns the number of this container's task, which may be a string.
func (s clusterSpec) index() (int, error) {
	return strconv.Atoi(strings.Trim(clean(string(s.Task.Index)), `"`))
}

// ownHost returns the host of this container's task, "" if the cluster does not list it.
func (s clusterSpec) ownHost() string {
	var list []string
	index, err := s.index()
	if err != nil || json.Unmarshal(s.Cluster[s.Task.Type], &list) != nil || index < 0 || index >= len(list) {
		return ""
	}
	hp, _ := parseHostPort(clean(list[index]))
	return hp.host
}

// beyondNodes says whether the cluster has more tasks than a list of nodes shows: tasks of several types, or several on
// one host.
func (s clusterSpec) beyondNodes() bool {
	only := s.Task.Type
	hosts := make(map[string]bool)
	for t, raw := range s.Cluster {
		var list []string
		if json.Unmarshal(raw, &list) != nil || len(list) == 0 {
			continue
		}
		if only = cmp.Or(only, t); t != only {
			return true
		}
		for _, item := range list {
			hp, _ := parseHostPort(clean(item))
			if hosts[hp.host] {
				return true
			}
			hosts[hp.host] = true
		}
	}
	return false
}

func readCluster(r *reader, job *Job, name string) {
	v := r.need("", name)
	spec := parseCluster(r, v)
	if !isRoleName(spec.Task.Type) {
		panic(r.wrong(v, "", "task.type %s is not a name", quote(spec.Task.Type)))
	}
	index, err := spec.index()
	if err != nil || index < 0 || index > maxTasks {
		panic(r.wrong(v, "", "task.index %s is not a number", quote(clean(string(spec.Task.Index)))))
	}
	job.Role, job.Index = spec.Task.Type, index
	r.note("role", v)
	r.note("index", v)
	// The order of keys in an object means nothing.
	for _, t := range slices.Sorted(maps.Keys(spec.Cluster)) {
		if t == "" {
			panic(r.wrong(v, "", "a task type of the cluster has no name"))
		}
		if !isRoleName(t) {
			panic(r.part(v, t, "", "the cluster has a task type %s", quote(t)))
		}
		r.addRole(job, t, clusterHosts(r, v, t, spec.Cluster[t]), v)
	}
	findClusterSelf(r, job, v)
	r.explicitIndex(job)
	r.ownRole(job, job.Role, v, v)
}

// findClusterSelf finds this container's task in the cluster.
func findClusterSelf(r *reader, job *Job, v variable) {
	task := job.Role + "/" + strconv.Itoa(job.Index)
	names := roleNames(job.Roles)
	at := slices.Index(names, job.Role)
	switch {
	case at >= 0 && job.Index >= job.Roles[at].Count:
		n := job.Roles[at].Count
		panic(r.part(v, task, "", "task %s but cluster.%s has %d entries (0..%d)", task, job.Role, n, n-1))
	case at >= 0:
	case job.Role == "evaluator":
		// Evaluators read checkpoints, and the cluster does not list them.
		r.warn("%s: an evaluator is not part of the cluster; it runs on its own", v.name)
		job.Roles, job.Peers, job.Index = []Role{}, []Peer{}, 0
		r.addRole(job, job.Role, []string{""}, v)
	case (job.Role == "master" || job.Role == "chief") && job.Index == 0 && len(job.Roles) > 0:
		// Azure Batch AI used these names for the first worker.
		first := slices.MinFunc(job.Roles, func(a, b Role) int { return rankClass(a.Name) - rankClass(b.Name) })
		r.warn("%s: task %s is not in the cluster; taken for %s/0", v.name, task, first.Name)
		job.Role = first.Name
	default:
		known := cmp.Or(quoteAll(names), "no tasks")
		panic(r.part(v, task, "", "task %s is not in the cluster, which has %s", task, known))
	}
}

// clusterHosts reads the list of one task type.
func clusterHosts(r *reader, v variable, task string, raw json.RawMessage) []string {
	text := clean(string(raw))
	if strings.HasPrefix(text, "{") {
		panic(r.part(v, text, "set PAIINIT_PEERS",
			"cluster.%s is %s, an object, which lists this task only (enableDynamicWorker)", task, quote(text)))
	}
	var list []string
	if err := json.Unmarshal(raw, &list); err != nil {
		panic(r.part(v, text, "", "cluster.%s is %s, not a list of hosts", task, quote(text)))
	}
	for i, item := range list {
		hp, problem := parseHostPort(clean(item))
		if problem != "" {
			panic(r.part(v, item, "", "cluster.%s: %s (entry %d is %s)", task, problem, i, quote(item)))
		}
		list[i] = hp.host
	}
	return list
}
