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

func parseCluster(r *reader, v variable) (spec clusterSpec, err error) {
	if err := json.Unmarshal([]byte(v.value), &spec); err != nil {
		return spec, r.badJSON(v, err)
	}
	return spec, nil
}

// ownHost returns the host of this container's task, "" if the cluster does not list it.
func (s clusterSpec) ownHost() string {
	var list []string
	index, err := strconv.Atoi(strings.Trim(clean(string(s.Task.Index)), `"`))
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

func readCluster(r *reader, job *Job, name string) error {
	v, ok := r.get(name)
	if !ok {
		return r.missing("", name)
	}
	spec, err := parseCluster(r, v)
	if err != nil {
		return err
	}
	if !isRoleName(spec.Task.Type) {
		return r.wrong(v, "", "task.type %s is not a name", quote(spec.Task.Type))
	}
	index, err := strconv.Atoi(strings.Trim(clean(string(spec.Task.Index)), `"`))
	if err != nil || index < 0 || index > maxTasks {
		return r.wrong(v, "", "task.index %s is not a number", quote(clean(string(spec.Task.Index))))
	}
	job.Role, job.Index = spec.Task.Type, index
	r.note("role", v)
	r.note("index", v)
	// The order of keys in an object means nothing.
	types := slices.Sorted(maps.Keys(spec.Cluster))
	for _, t := range types {
		if !isRoleName(t) {
			return r.part(v, t, "", "%s: the cluster has a task type %s", v.name, quote(t))
		}
		hosts, err := clusterHosts(r, v, t, spec.Cluster[t])
		if err != nil {
			return err
		}
		if err := r.addRole(job, t, hosts, v); err != nil {
			return err
		}
	}
	if err := findClusterSelf(r, job, v); err != nil {
		return err
	}
	if err := r.explicitIndex(job); err != nil {
		return err
	}
	return r.ownRole(job, job.Role, v, v)
}

// findClusterSelf finds this container's task in the cluster.
func findClusterSelf(r *reader, job *Job, v variable) error {
	task := job.Role + "/" + strconv.Itoa(job.Index)
	for _, role := range job.Roles {
		switch {
		case role.Name != job.Role:
		case job.Index >= role.Count:
			return r.part(v, task, "", "%s: task %s but cluster.%s has %d entries (0..%d)", v.name, task, role.Name,
				role.Count, role.Count-1)
		default:
			return nil
		}
	}
	switch {
	case job.Role == "evaluator":
		// Evaluators read checkpoints, and the cluster does not list them.
		r.warn("%s: an evaluator is not part of the cluster; it runs on its own", v.name)
		job.Roles, job.Peers, job.Index = []Role{}, []Peer{}, 0
		return r.addRole(job, job.Role, []string{""}, v)
	case (job.Role == "master" || job.Role == "chief") && job.Index == 0 && len(job.Roles) > 0:
		// Azure Batch AI used these names for the first worker.
		first := slices.MinFunc(job.Roles, func(a, b Role) int { return rankClass(a.Name) - rankClass(b.Name) })
		r.warn("%s: task %s is not in the cluster; taken for %s/0", v.name, task, first.Name)
		job.Role = first.Name
		return nil
	}
	names := make([]string, len(job.Roles))
	for i := range job.Roles {
		names[i] = job.Roles[i].Name
	}
	return r.part(v, task, "", "%s: task %s is not in the cluster, which has %s", v.name, task,
		cmp.Or(quoteAll(names), "no tasks"))
}

// clusterHosts reads the list of one task type.
func clusterHosts(r *reader, v variable, task string, raw json.RawMessage) ([]string, error) {
	if text := clean(string(raw)); strings.HasPrefix(text, "{") {
		return nil, r.part(v, text, "set PAIINIT_PEERS",
			"%s: cluster.%s is %s, an object, which lists this task only (enableDynamicWorker)", v.name, task,
			quote(text))
	}
	var list []string
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, r.part(v, clean(string(raw)), "", "%s: cluster.%s is %s, not a list of hosts", v.name, task,
			quote(clean(string(raw))))
	}
	for i, item := range list {
		hp, problem := parseHostPort(clean(item))
		if problem != "" {
			return nil, r.part(v, item, "", "%s: cluster.%s: %s (entry %d is %s)", v.name, task, problem, i,
				quote(item))
		}
		list[i] = hp.host
	}
	return list, nil
}
