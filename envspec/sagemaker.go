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

func readSageMaker(r *reader, job *Job) error {
	v, ok := r.get("SM_RESOURCE_CONFIG")
	if text, isFile := r.file(sageMakerFile); isFile {
		v, ok = variable{name: sageMakerFile, value: clean(text)}, true
	}
	if !ok {
		return r.missing("", "SM_RESOURCE_CONFIG", sageMakerFile)
	}
	var config struct {
		Current string   `json:"current_host"`
		Hosts   []string `json:"hosts"`
	}
	if err := json.Unmarshal([]byte(v.value), &config); err != nil {
		return r.badJSON(v, err)
	}
	if err := r.soleRole(job, v); err != nil {
		return err
	}
	r.readID(job, "TRAINING_JOB_NAME")
	if len(config.Hosts) == 0 {
		return r.part(v, v.name, "", "%s: hosts is empty", v.name)
	}
	if r.has("PAIINIT_INDEX") {
		if err := r.ownIndex(job); err != nil {
			return err
		}
	} else {
		job.Index = slices.Index(config.Hosts, config.Current)
		r.note("index", v)
		if job.Index < 0 {
			return r.part(v, v.name, "", "%s: current_host %s is not one of %s", v.name, quote(config.Current),
				quoteAll(config.Hosts))
		}
	}
	r.gpusHere("SM_NUM_GPUS")
	return r.addRole(job, job.Role, config.Hosts, v)
}
