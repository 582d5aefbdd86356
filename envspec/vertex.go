package envspec

// Vertex AI sets CLUSTER_SPEC.
// Source: cloud.google.com/vertex-ai/docs/training/distributed-training.

func matchVertex(r *reader) string { return r.sees("CLUSTER_SPEC") }

func readVertex(r *reader, job *Job) { readCluster(r, job, "CLUSTER_SPEC") }
