package envspec

import (
	"encoding/json"
	"slices"
)

// SageMaker describes the cluster in a file. Hosts are sorted as text, algo-10 before algo-2, and the first one leads.
// Source: src/sagemaker_training/environment.py of github.com/aws/sagemaker-training-toolkit.

const sageMakerFile = "/opt/ml/input/config/resourceconfig.json"

func matchSageMaker(r *reader) string {
	if r.exists(sageMakerFile) {
		return sageMakerFile
	}
	return r.sees("SM_RESOURCE_CONFIG")
}

func readSageMaker(r *reader, job *Job) {
	v, ok := r.get("SM_RESOURCE_CONFIG")
	if text, isFile := r.file(sageMakerFile); isFile {
		v, ok = variable{name: sageMakerFile, value: clean(text)}, true
	}
	if !ok {
		panic(r.missing("", "SM_RESOURCE_CONFIG", sageMakerFile))
	}
	var config struct {
		Current string   `json:"current_host"`
		Hosts   []string `json:"hosts"`
	}
	if err := json.Unmarshal([]byte(v.value), &config); err != nil {
		panic(r.badJSON(v, err))
	}
	r.soleRole(job, v)
	r.readID(job, "TRAINING_JOB_NAME")
	if len(config.Hosts) == 0 {
		panic(r.part(v, v.name, "", "hosts is empty"))
	}
	if r.has("PAIINIT_INDEX") {
		r.ownIndex(job)
	} else {
		job.Index = slices.Index(config.Hosts, config.Current)
		r.note("index", v)
	}
	if job.Index < 0 {
		known := quoteAll(config.Hosts)
		panic(r.part(v, v.name, "", "current_host %s is not one of %s", quote(config.Current), known))
	}
	r.gpusHere("SM_NUM_GPUS")
	r.addRole(job, job.Role, config.Hosts, v)
}
