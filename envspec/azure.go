package envspec

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Azure Batch and Azure Machine Learning list addresses. A plain Batch task has to find its own among them.
// Sources: learn.microsoft.com/azure/batch/batch-compute-node-environment-variables and
// learn.microsoft.com/azure/machine-learning/how-to-train-distributed-gpu.

func matchAzure(r *reader) string {
	return r.sees("AZ_BATCH_HOST_LIST", "AZ_BATCH_NODE_LIST", "AZ_BATCHAI_MPI_MASTER_NODE", "AZ_BATCHAI_WORKER_HOSTS",
		"AZUREML_NODE_COUNT")
}

func readAzure(r *reader, job *Job) error {
	r.readID(job, "AZUREML_RUN_ID", "AZ_BATCH_JOB_ID")
	r.gpusHere("AZ_BATCHAI_NUM_GPUS", "AZ_BATCHAI_GPU_COUNT")
	cluster := azureCluster(r)
	if cluster.beyondNodes() {
		return readCluster(r, job, "TF_CONFIG")
	}
	if err := r.checkOnce("LOCAL_RANK", "on this node", "set process_count_per_instance to 1"); err != nil {
		return err
	}
	if r.has("AZ_BATCHAI_WORKER_HOSTS") &&
		(r.has("AZ_BATCHAI_PS_HOSTS") || !r.has("AZ_BATCH_HOST_LIST", "AZ_BATCH_NODE_LIST")) {
		return readAzureRoles(r, job)
	}
	list, hosts, err := azureHosts(r)
	if err != nil {
		return err
	}
	if list.name == "" {
		if r.has("TF_CONFIG") && !r.has("NODE_RANK") {
			return readCluster(r, job, "TF_CONFIG")
		}
		// A job of one node may get its master's address and nothing else.
		if v, ok := r.get("AZ_BATCHAI_MPI_MASTER_NODE"); ok &&
			!r.has("AZUREML_NODE_COUNT", "NODE_RANK", "PAIINIT_SIZE") {
			return soleContainer(r, job, v)
		}
		return readKnownMaster(r, job, []string{"AZ_BATCHAI_MPI_MASTER_NODE", "MASTER_ADDR"},
			[]string{"NODE_RANK", "AZ_BATCHAI_TASK_INDEX"}, []string{"AZUREML_NODE_COUNT"}, "")
	}
	if err := r.soleRole(job, list); err != nil {
		return err
	}
	// The master is not always the first of the list.
	if v, ok := r.get("AZ_BATCH_MASTER_NODE", "AZ_BATCHAI_MPI_MASTER_NODE"); ok {
		hp, problem := parseHostPort(v.value)
		if problem != "" {
			return r.wrong(v, "", "%s", problem)
		}
		if at := slices.Index(hosts, hp.host); at > 0 {
			hosts = append([]string{hp.host}, slices.Delete(slices.Clone(hosts), at, at+1)...)
		}
	}
	if err := azureIndex(r, job, list, hosts, cluster.ownHost()); err != nil {
		return err
	}
	return r.addRole(job, job.Role, hosts, list)
}

// azureCluster reads TF_CONFIG, which TensorFlow jobs get beside the list of nodes. If it cannot be read it is ignored,
// because jobs of other frameworks do not need it.
func azureCluster(r *reader) (spec clusterSpec) {
	v, ok := r.get("TF_CONFIG")
	if !ok {
		return spec
	}
	spec, err := parseCluster(r, v)
	if err != nil {
		r.warn("%v; ignored", err)
		return clusterSpec{}
	}
	return spec
}

// azureHosts reads the first list of nodes that is set.
func azureHosts(r *reader) (variable, []string, error) {
	for _, form := range []struct{ name, sep string }{{"AZ_BATCH_HOST_LIST", ","}, {"AZ_BATCH_NODE_LIST", ";"}} {
		if v, ok := r.get(form.name); ok {
			hosts, err := r.items(v, form.sep)
			return v, hosts, err
		}
	}
	// COUNT HOST CORES HOST CORES ...
	v, ok := r.get("CCP_NODES")
	if !ok {
		return variable{}, nil, nil
	}
	fields := strings.Fields(v.value)
	n, err := strconv.Atoi(fields[0])
	if err != nil || n < 1 || len(fields) != 1+2*n {
		return v, nil, r.bad(v, "", "is not a number of nodes followed by a name and a number of cores each")
	}
	var hosts []string
	for i := 1; i < len(fields); i += 2 {
		hosts = append(hosts, fields[i])
	}
	return v, hosts, nil
}

// azureIndex finds this container in hosts: by its addresses, by the host of its task in TF_CONFIG, or by its number.
func azureIndex(r *reader, job *Job, list variable, hosts []string, taskHost string) error {
	if r.has("PAIINIT_INDEX") {
		return r.ownIndex(job)
	}
	for i, host := range hosts {
		if addr, err := netip.ParseAddr(host); err == nil && !addr.IsLoopback() && r.isOwn(addr) ||
			err != nil && r.isSelf(host) {
			job.Index = i
			r.note("index", list)
			return nil
		}
	}
	if at := slices.Index(hosts, taskHost); at >= 0 {
		job.Index = at
		r.sources["index"] = "TF_CONFIG"
		return nil
	}
	if r.has("NODE_RANK", "AZ_BATCHAI_TASK_INDEX") {
		return r.ownIndex(job, "NODE_RANK", "AZ_BATCHAI_TASK_INDEX")
	}
	if len(hosts) == 1 {
		job.Index = 0
		r.note("index", list)
		return nil
	}
	return r.fail(list, "",
		"none of my addresses (%s) is in %s (%s): run the container with host networking or set PAIINIT_INDEX",
		r.whoAmI(), list.name, strings.Trim(quote(list.value), `"`))
}

// readAzureRoles reads Batch AI's lists of TensorFlow servers. Several may share a node, and only the command line
// tells the role.
func readAzureRoles(r *reader, job *Job) error {
	for _, role := range []struct{ name, list string }{
		{defaultRole, "AZ_BATCHAI_WORKER_HOSTS"}, {"ps", "AZ_BATCHAI_PS_HOSTS"},
	} {
		v, ok := r.get(role.list)
		if !ok {
			continue
		}
		hosts, err := r.items(v, ",")
		if err != nil {
			return err
		}
		for i, host := range hosts {
			hp, problem := parseHostPort(host)
			if problem != "" {
				return r.wrong(v, "", "%s", problem)
			}
			hosts[i] = hp.host
		}
		if err := r.addRole(job, role.name, hosts, v); err != nil {
			return err
		}
	}
	if err := r.ownIndex(job, "AZ_BATCHAI_TASK_INDEX"); err != nil {
		return err
	}
	list, _ := r.get("AZ_BATCHAI_WORKER_HOSTS")
	if len(job.Roles) == 1 {
		return r.ownRole(job, defaultRole, list, list)
	}
	if !r.has("PAIINIT_ROLE") {
		return r.missing("set it to ps or worker", "PAIINIT_ROLE")
	}
	return r.ownRole(job, "", list, list)
}
