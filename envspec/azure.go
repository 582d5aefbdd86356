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

func readAzure(r *reader, job *Job) {
	r.readID(job, "AZUREML_RUN_ID", "AZ_BATCH_JOB_ID")
	r.gpusHere("AZ_BATCHAI_NUM_GPUS", "AZ_BATCHAI_GPU_COUNT")
	cluster := azureCluster(r)
	if cluster.beyondNodes() {
		readCluster(r, job, "TF_CONFIG")
		return
	}
	r.checkOnce("LOCAL_RANK", "on this node", "set process_count_per_instance to 1")
	if r.has("AZ_BATCHAI_WORKER_HOSTS") &&
		(r.has("AZ_BATCHAI_PS_HOSTS") || !r.has("AZ_BATCH_HOST_LIST", "AZ_BATCH_NODE_LIST")) {
		readAzureRoles(r, job)
		return
	}
	list, hosts := azureHosts(r)
	if list.name == "" {
		if r.has("TF_CONFIG") && !r.has("NODE_RANK") {
			readCluster(r, job, "TF_CONFIG")
			return
		}
		// A job of one node may get its master's address and nothing else.
		if v, ok := r.get("AZ_BATCHAI_MPI_MASTER_NODE"); ok &&
			!r.has("AZUREML_NODE_COUNT", "NODE_RANK", "PAIINIT_SIZE") {
			r.spread = true
			soleContainer(r, job, v)
			return
		}
		readKnownMaster(r, job, []string{"AZ_BATCHAI_MPI_MASTER_NODE", "MASTER_ADDR"},
			[]string{"NODE_RANK", "AZ_BATCHAI_TASK_INDEX"}, []string{"AZUREML_NODE_COUNT"}, "")
		return
	}
	r.soleRole(job, list)
	// The master is not always the first of the list.
	if v, ok := r.get("AZ_BATCH_MASTER_NODE", "AZ_BATCHAI_MPI_MASTER_NODE"); ok {
		master := r.place(v, v.value).host
		if at := slices.Index(hosts, master); at > 0 {
			hosts = append([]string{master}, slices.Delete(slices.Clone(hosts), at, at+1)...)
		}
	}
	azureIndex(r, job, list, hosts, cluster.ownHost())
	r.addRole(job, job.Role, hosts, list)
}

// azureCluster reads TF_CONFIG, which TensorFlow jobs get beside the list of nodes. If it cannot be read it is ignored,
// because jobs of other frameworks do not need it.
func azureCluster(r *reader) clusterSpec {
	var spec clusterSpec
	if v, ok := r.get("TF_CONFIG"); ok {
		if err := catch(func() { spec = parseCluster(r, v) }); err != nil {
			r.warn("%v; ignored", err)
		}
	}
	return spec
}

// azureHosts reads the first list of nodes that is set.
func azureHosts(r *reader) (variable, []string) {
	for _, form := range []struct{ name, sep string }{{"AZ_BATCH_HOST_LIST", ","}, {"AZ_BATCH_NODE_LIST", ";"}} {
		if v, ok := r.get(form.name); ok {
			return v, r.items(v, form.sep)
		}
	}
	// COUNT HOST CORES HOST CORES ...
	v, ok := r.get("CCP_NODES")
	if !ok {
		return variable{}, nil
	}
	fields := strings.Fields(v.value)
	n, err := strconv.Atoi(fields[0])
	if err != nil || n < 1 || len(fields) != 1+2*n {
		panic(r.bad(v, "", "is not a number of nodes followed by a name and a number of cores each"))
	}
	var hosts []string
	for i := 1; i < len(fields); i += 2 {
		hosts = append(hosts, fields[i])
	}
	return v, hosts
}

// azureIndex finds this container in hosts: by its addresses, by the host of its task in TF_CONFIG, or by its number.
func azureIndex(r *reader, job *Job, list variable, hosts []string, taskHost string) {
	here := slices.IndexFunc(hosts, func(host string) bool {
		addr, _ := netip.ParseAddr(host)
		return !addr.IsLoopback() && r.isSelf(host)
	})
	byTask := slices.Index(hosts, taskHost)
	switch {
	case r.has("PAIINIT_INDEX"):
		r.ownIndex(job)
	case here >= 0:
		job.Index = here
		r.note("index", list)
	case byTask >= 0:
		job.Index = byTask
		r.sources["index"] = "TF_CONFIG"
	case r.has("NODE_RANK", "AZ_BATCHAI_TASK_INDEX"):
		r.ownIndex(job, "NODE_RANK", "AZ_BATCHAI_TASK_INDEX")
	case len(hosts) == 1:
		job.Index = 0
		r.note("index", list)
	default:
		panic(r.fail(list, "",
			"none of my addresses (%s) is in %s (%s): run the container with host networking or set PAIINIT_INDEX",
			r.whoAmI(), list.name, list.shown()))
	}
}

// readAzureRoles reads Batch AI's lists of TensorFlow servers. Several may share a node, and only the command line
// tells the role.
func readAzureRoles(r *reader, job *Job) {
	for _, role := range []struct{ name, list string }{
		{defaultRole, "AZ_BATCHAI_WORKER_HOSTS"}, {"ps", "AZ_BATCHAI_PS_HOSTS"},
	} {
		v, ok := r.get(role.list)
		if !ok {
			continue
		}
		hosts := r.items(v, ",")
		for i, host := range hosts {
			hosts[i] = r.place(v, host).host
		}
		r.addRole(job, role.name, hosts, v)
	}
	r.ownIndex(job, "AZ_BATCHAI_TASK_INDEX")
	if len(job.Roles) > 1 && !r.has("PAIINIT_ROLE") {
		panic(r.missing("set it to ps or worker", "PAIINIT_ROLE"))
	}
	list, _ := r.get("AZ_BATCHAI_WORKER_HOSTS")
	r.ownRole(job, defaultRole, list, list)
}

// findAzureRDMA looks for the signs of Azure's Network Direct: the variable by which an OpenPAI job asks for it, the
// directory that OpenPAI then mounts (src/rest-server/src/templates of 0.14), the device of Azure's driver, and its
// line in uDAPL's configuration.
func findAzureRDMA(r *reader, job *Job) {
	sign := func(name string, seen bool) {
		if seen {
			job.AzureRDMA = append(job.AzureRDMA, name)
		}
	}
	v, _ := r.get("paiAzRDMA")
	asked, _ := strconv.ParseBool(strings.ToLower(v.value))
	sign("paiAzRDMA", asked)
	sign("/var/lib/hyperv", r.exists("/var/lib/hyperv") || r.entries("/var/lib/hyperv") != nil)
	sign("/dev/hvnd_rdma", r.exists("/dev/hvnd_rdma"))
	conf, _ := r.file("/etc/dat.conf")
	sign("/etc/dat.conf", strings.Contains(conf, "ofa-v2-ib0"))
	if len(job.AzureRDMA) > 0 {
		r.sources["azure_rdma"] = strings.Join(job.AzureRDMA, ", ")
	}
}
