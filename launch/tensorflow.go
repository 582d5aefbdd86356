package launch

import "encoding/json"

// tfConfig is TF_CONFIG, as documented for tf.distribute.cluster_resolver.TFConfigClusterResolver.
type tfConfig struct {
	Cluster struct {
		Chief  []string `json:"chief,omitempty"`
		PS     []string `json:"ps,omitempty"`
		Worker []string `json:"worker,omitempty"`
	} `json:"cluster"`
	Task struct {
		Type  string `json:"type"`
		Index int    `json:"index"`
	} `json:"task"`
}

// tensorFlow returns TF_CONFIG for MultiWorkerMirroredStrategy, or for ParameterServerStrategy if there are parameter
// servers. There is at most one chief; evaluators get the cluster, but are not part of it.
func tensorFlow(t Tasks) []Var {
	if len(t.Ranks) < 2 {
		return nil
	}
	var c tfConfig
	var evaluators []string
	for rank, task := range t.Ranks {
		part, list := kind(task.Role), &c.Cluster.Worker
		switch {
		case part == "chief" && len(c.Cluster.Chief) == 0:
			list = &c.Cluster.Chief
		case part == "ps":
			list = &c.Cluster.PS
		case part == "evaluator":
			list = &evaluators
		default:
			part = "worker"
		}
		if rank == t.Self {
			c.Task.Type, c.Task.Index = part, len(*list)
		}
		*list = append(*list, task.address())
	}
	b, err := json.Marshal(c)
	if err != nil {
		return nil // cannot happen with strings and numbers
	}
	return []Var{{"TF_CONFIG", string(b), "TensorFlow's strategies find the cluster and their part in it"}}
}
