package envspec

import (
	"cmp"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// TF_CONFIG, as Kubeflow's TFJob and others set it, and CLUSTER_SPEC of Vertex AI, which has the same form. The hosts have
// TensorFlow's ports, which are the job's own.
// Sources: pkg/controller.v1/tensorflow/tensorflow.go of github.com/kubeflow/training-operator (v1.9),
// tensorflow.org/api_docs/python/tf/distribute/cluster_resolver/TFConfigClusterResolver,
// cloud.google.com/vertex-ai/docs/training/distributed-training.

func matchTFConfig(r *reader) string { return r.sees("TF_CONFIG") }

func readTFConfig(r *reader, job *Job) error { return r.readCluster(job, "TF_CONFIG") }

func matchVertex(r *reader) string { return r.sees("CLUSTER_SPEC") }

func readVertex(r *reader, job *Job) error { return r.readCluster(job, "CLUSTER_SPEC") }

// sees returns the first of names that is set, or "".
func (r *reader) sees(names ...string) string {
	v, _ := r.get(names...)
	return v.name
}

// clusterSpec is the form of TF_CONFIG and CLUSTER_SPEC.
type clusterSpec struct {
	Cluster map[string]json.RawMessage `json:"cluster"`
	Task    struct {
		Type  string          `json:"type"`
		Index json.RawMessage `json:"index"`
	} `json:"task"`
}

func (r *reader) parseCluster(v variable) (spec clusterSpec, err error) {
	if err := json.Unmarshal([]byte(v.value), &spec); err != nil {
		return spec, r.badJSON(v, err)
	}
	return spec, nil
}

// ownHost is the host of the own task, "" where the cluster does not list it.
func (s clusterSpec) ownHost() string {
	var list []string
	index, err := strconv.Atoi(strings.Trim(clean(string(s.Task.Index)), `"`))
	if err != nil || json.Unmarshal(s.Cluster[s.Task.Type], &list) != nil || index < 0 || index >= len(list) {
		return ""
	}
	hp, _ := parseHostPort(clean(list[index]))
	return hp.host
}

// beyondNodes says whether the cluster distinguishes tasks that a list of nodes does not: tasks of several types, or
// several tasks on one host.
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

func (r *reader) readCluster(job *Job, name string) error {
	v, ok := r.get(name)
	if !ok {
		return r.missing("", name)
	}
	spec, err := r.parseCluster(v)
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
	// The order of an object means nothing.
	types := slices.Sorted(maps.Keys(spec.Cluster))
	for _, t := range types {
		if !isRoleName(t) {
			return r.part(v, t, "", "%s: the cluster has a task type %s", v.name, quote(t))
		}
		hosts, err := r.clusterHosts(v, t, spec.Cluster[t])
		if err != nil {
			return err
		}
		if err := r.addRole(job, t, hosts, v); err != nil {
			return err
		}
	}
	if err := r.clusterSelf(job, v); err != nil {
		return err
	}
	if r.has("PAIINIT_INDEX") {
		if err := r.ownIndex(job); err != nil {
			return err
		}
	}
	return r.ownRole(job, job.Role, v, v)
}

// clusterSelf finds the own task in the cluster.
func (r *reader) clusterSelf(job *Job, v variable) error {
	task := job.Role + "/" + strconv.Itoa(job.Index)
	for _, role := range job.Roles {
		switch {
		case role.Name != job.Role:
		case job.Index >= role.Count:
			return r.part(v, task, "", "%s: task %s but cluster.%s has %d entries (0..%d)", v.name, task, role.Name, role.Count, role.Count-1)
		default:
			return nil
		}
	}
	switch {
	case job.Role == "evaluator":
		// Evaluators look at checkpoints, and nobody in the cluster knows of them.
		r.warn("%s: an evaluator is no part of the cluster; it runs on its own", v.name)
		job.Roles, job.Peers, job.Index = []Role{}, []Peer{}, 0
		return r.addRole(job, job.Role, []string{""}, v)
	case (job.Role == "master" || job.Role == "chief") && job.Index == 0 && len(job.Roles) > 0:
		// Azure Batch AI called the first worker so.
		first := slices.MinFunc(job.Roles, func(a, b Role) int { return rankClass(a.Name) - rankClass(b.Name) })
		r.warn("%s: task %s is not in the cluster; taken for %s/0", v.name, task, first.Name)
		job.Role = first.Name
		return nil
	}
	names := make([]string, len(job.Roles))
	for i := range job.Roles {
		names[i] = job.Roles[i].Name
	}
	return r.part(v, task, "", "%s: task %s is not in the cluster, which has %s", v.name, task, cmp.Or(quoteAll(names), "no tasks"))
}

// clusterHosts reads the list of one task type.
func (r *reader) clusterHosts(v variable, task string, raw json.RawMessage) ([]string, error) {
	if text := clean(string(raw)); strings.HasPrefix(text, "{") {
		return nil, r.part(v, text, "set PAIINIT_PEERS", "%s: cluster.%s is %s, an object, which lists this task only (enableDynamicWorker)",
			v.name, task, quote(text))
	}
	var list []string
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, r.part(v, clean(string(raw)), "", "%s: cluster.%s is %s, not a list of hosts", v.name, task, quote(clean(string(raw))))
	}
	for i, item := range list {
		hp, problem := parseHostPort(clean(item))
		if problem != "" {
			return nil, r.part(v, item, "", "%s: cluster.%s: %s (entry %d is %s)", v.name, task, problem, i, quote(item))
		}
		list[i] = hp.host
	}
	return list, nil
}

// part returns an error about a part of v, which is too long to be shown whole.
func (r *reader) part(v variable, value, advice, problem string, args ...any) *VarError {
	return r.fail(variable{name: v.name, value: value}, advice, problem, args...)
}

// badJSON tells where a value stops being JSON.
func (r *reader) badJSON(v variable, err error) *VarError {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	at := int64(len(v.value))
	problem := "invalid JSON"
	switch {
	case errors.As(err, &syntax):
		at = syntax.Offset
	case errors.As(err, &kind):
		at, problem = kind.Offset, "unexpected JSON"
		err = errors.New(kind.Value + " is out of place")
	}
	near := v.value[max(0, min(int(at), len(v.value))-20):min(int(at)+20, len(v.value))]
	near = strings.ToValidUTF8(near, "")
	return r.part(v, near, "", "%s: %s at byte %d: %v, near %s", v.name, problem, at, err, quote(near))
}
