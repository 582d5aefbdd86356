package envspec

// Kubeflow's TFJob and others set TF_CONFIG.
// Sources: pkg/controller.v1/tensorflow/tensorflow.go of github.com/kubeflow/training-operator (v1.9),
// tensorflow.org/api_docs/python/tf/distribute/cluster_resolver/TFConfigClusterResolver.

func matchTFConfig(r *reader) string { return r.sees("TF_CONFIG") }

func readTFConfig(r *reader, job *Job) { readCluster(r, job, "TF_CONFIG") }
