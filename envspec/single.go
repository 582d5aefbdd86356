package envspec

// matchSingle always matches: without any sign of a scheduler, the container is alone.
func matchSingle(*reader) string { return "default" }

func readSingle(r *reader, job *Job) {
	soleContainer(r, job, variable{name: "default"})
}

// signOfOthers returns a variable that a scheduler, a launcher or a user sets for the containers of a job, if Size is 1
// only by default. Many such containers would each run the whole command, and all of them would succeed.
func signOfOthers(r *reader, job *Job) string {
	if job.Size != 1 || r.sources["size"] != "default" || r.has("PAIINIT_SYSTEM") {
		return ""
	}
	for _, name := range []string{
		"SLURM_JOB_NUM_NODES", "SLURM_NNODES", "WORLD_SIZE", "NNODES", "NUM_NODES", "PET_NNODES", "SKYPILOT_NUM_NODES",
		"PADDLE_TRAINERS_NUM",
	} {
		if clean(r.vars[name]) == "1" {
			return "" // the job has one container, and says so
		}
	}
	for _, name := range []string{
		"PAIINIT_ROLE", "PAIINIT_INDEX", "PAIINIT_RANK",
		"SLURM_JOB_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_ID", "PBS_NODEFILE", "PBS_JOBID", "LSB_HOSTS", "LSB_JOBID",
		"PE_HOSTFILE", "COBALT_NODEFILE", "FLUX_JOB_ID",
		"PAI_JOB_NAME", "FC_FRAMEWORK_NAME", "AZ_BATCH_JOB_ID", "AZUREML_RUN_ID", "AWS_BATCH_JOB_ID", "SM_HOSTS",
		"SKYPILOT_TASK_ID", "DSTACK_RUN_NAME", "VC_TASK_INDEX", "VK_TASK_INDEX", "LWS_GROUP_SIZE", "JOBSET_NAME",
		"MASTER_ADDR", "WORLD_SIZE", "NODE_RANK", "NNODES", "NUM_NODES", "PET_NNODES", "DMLC_ROLE",
		"PADDLE_TRAINERS_NUM", "NOMAD_JOB_ID", "KUBERNETES_SERVICE_HOST",
	} {
		if r.has(name) {
			return name
		}
	}
	return ""
}
