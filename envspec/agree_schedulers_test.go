package envspec_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/paiinit/paiinit/envspec"
)

// describe draws a job. It returns the input and the name of each of its containers, in rank order.
type describe func(t *rapid.T) (inputs []envspec.Input, aliases []string)

func TestSchedulersAgree(t *testing.T) {
	for name, describe := range map[string]describe{
		"azure": azureViews, "mpijob": mpiJobViews, "pytorchjob": pyTorchJobViews, "trainjob": trainJobViews,
		"tf-config": tfConfigViews, "vertex": vertexViews, "volcano": volcanoViews, "slurm": slurmViews,
		"kubernetes-indexed-job": indexedJobViews, "jobset": jobSetViews, "kubernetes-statefulset": statefulSetViews,
		"leaderworkerset": leaderWorkerSetViews,
		"aws-batch":       awsBatchViews, "sagemaker": sageMakerViews, "dstack": dstackViews, "skypilot": skyPilotViews,
		"runpod": runPodViews, "torchrun": torchrunViews,
	} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				inputs, aliases := describe(t)
				checkViews(t, inputs, aliases)
				job, err := envspec.Read(context.Background(), inputs[0])
				require.NoError(t, err)
				require.Equal(t, name, job.System)
			})
		})
	}
}

func drawCount(t *rapid.T) int { return rapid.IntRange(1, 12).Draw(t, "containers") }

// drawName draws a name of Kubernetes.
func drawName(t *rapid.T, what string) string {
	return rapid.StringMatching(`[a-z]([a-z0-9-]{0,12}[a-z0-9])?`).Draw(t, what)
}

// drawPort sometimes gives all containers a port.
func drawPort(t *rapid.T) []string {
	if rapid.Bool().Draw(t, "port given") {
		return []string{fmt.Sprintf("PAIINIT_PORT=%d", rapid.IntRange(1024, 60000).Draw(t, "port"))}
	}
	return nil
}

func aliasesOf(role string, n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("%s-%d", role, i)
	}
	return list
}

// views makes one input per container.
func views(n int, describe func(i int) envspec.Input) []envspec.Input {
	list := make([]envspec.Input, n)
	for i := range list {
		list[i] = describe(i)
		list[i].CPUs = 2
	}
	return list
}

func vars(pairs ...any) []string {
	var env []string
	for i := 0; i < len(pairs); i += 2 {
		env = append(env, fmt.Sprintf("%v=%v", pairs[i], pairs[i+1]))
	}
	return env
}

func drawAddrs(t *rapid.T, n int) []string {
	numbers := rapid.SliceOfNDistinct(rapid.IntRange(1, 250), n, n, rapid.ID).Draw(t, "addresses")
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("10.0.0.%d", numbers[i])
	}
	return list
}

func azureViews(t *rapid.T) ([]envspec.Input, []string) {
	n, port := drawCount(t), drawPort(t)
	listed := drawAddrs(t, n)
	master := rapid.IntRange(0, n-1).Draw(t, "master")
	ranked := append([]string{listed[master]}, slices.Delete(slices.Clone(listed), master, master+1)...)
	ccp := []string{strconv.Itoa(n)}
	for _, a := range listed {
		ccp = append(ccp, a, "24")
	}
	list := rapid.SampledFrom([]string{
		"AZ_BATCH_HOST_LIST=" + strings.Join(listed, ","),
		"AZ_BATCH_NODE_LIST=" + strings.Join(listed, ";"),
		"CCP_NODES=" + strings.Join(ccp, " "),
	}).Draw(t, "list")
	return views(n, func(i int) envspec.Input {
		env := vars("AZ_BATCH_JOB_ID", "job", "AZ_BATCHAI_MPI_MASTER_NODE", listed[master], "AZ_BATCH_MASTER_NODE",
			listed[master]+":6000")
		addrs := []netip.Addr{
			netip.MustParseAddr("127.0.0.1"),
			netip.MustParseAddr("172.17.0.1"),
			netip.MustParseAddr(ranked[i]),
		}
		return envspec.Input{Environ: append(append(env, list), port...), Addrs: addrs}
	}), aliasesOf("worker", n)
}

func mpiJobViews(t *rapid.T) ([]envspec.Input, []string) {
	workers, job, port := drawCount(t), drawName(t, "job"), drawPort(t)
	pod := func(i int) string {
		if i == 0 {
			return job + "-launcher"
		}
		return fmt.Sprintf("%s-worker-%d", job, i-1)
	}
	form := rapid.SampledFrom(
		[]string{"%s.%s.ns.svc slots=3\n", "%s.%s.ns.svc:3\n", "%s.%s.ns.svc\n", "echo %s.%s.ns.svc\n"}).Draw(t, "form")
	var lines []string
	for i := range workers {
		lines = append(lines, fmt.Sprintf(form, pod(i+1), job))
	}
	if rapid.Bool().Draw(t, "sorted as text") {
		slices.Sort(lines)
	}
	return views(workers+1, func(i int) envspec.Input {
		if i == 0 {
			return envspec.Input{
				Environ: append(vars("K_MPI_JOB_ROLE", "launcher", "HOSTNAME", pod(0)), port...),
				Files:   fstest.MapFS{"etc/mpi/hostfile": {Data: []byte(strings.Join(lines, ""))}},
			}
		}
		return envspec.Input{Environ: append(vars("K_MPI_JOB_ROLE", "worker", "HOSTNAME", pod(i)), port...)}
	}), append([]string{"launcher-0"}, aliasesOf("worker", workers)...)
}

func pyTorchJobViews(t *rapid.T) ([]envspec.Input, []string) {
	n, each, job, port := drawCount(t), rapid.IntRange(1, 8).Draw(t, "processes"), drawName(t, "job"), drawPort(t)
	master := job + "-master-0"
	return views(n, func(i int) envspec.Input {
		env := vars("MASTER_ADDR", master, "PET_MASTER_ADDR", master, "MASTER_PORT", 23456, "WORLD_SIZE", n*each,
			"RANK", i, "PET_NODE_RANK", i, "PET_NPROC_PER_NODE", each, "PET_NNODES", n)
		return envspec.Input{Environ: append(env, port...)}
	}), append([]string{"master-0"}, aliasesOf("worker", n-1)...)
}

func trainJobViews(t *rapid.T) ([]envspec.Input, []string) {
	n, job, port := drawCount(t), drawName(t, "job"), drawPort(t)
	tune := rapid.Bool().Draw(t, "torchtune")
	return views(n, func(i int) envspec.Input {
		env := vars("PET_NNODES", n, "PET_NPROC_PER_NODE", "auto", "PET_NODE_RANK", i, "JOB_COMPLETION_INDEX", i,
			"HOSTNAME", fmt.Sprintf("%s-node-0-%d", job, i))
		if !tune {
			env = append(env, fmt.Sprintf("PET_MASTER_ADDR=%s-node-0-0.%s", job, job))
		}
		return envspec.Input{Environ: append(env, port...)}
	}), aliasesOf("node", n)
}

// clusterViews describes a job as TF_CONFIG does. The order of an object's keys means nothing.
func clusterViews(job genJob, variable string, more []string) ([]envspec.Input, []string) {
	slices.SortFunc(job.roles, func(a, b genRole) int { return strings.Compare(a.name, b.name) })
	cluster := make(map[string][]string)
	for _, role := range job.roles {
		cluster[role.name] = []string{}
		for _, task := range role.tasks {
			cluster[role.name] = append(cluster[role.name], fmt.Sprintf("%s:%d", task.ip, task.http))
		}
	}
	return job.inputs(func(self taskOf) envspec.Input {
		text, err := json.Marshal(map[string]any{
			"cluster":     cluster,
			"task":        map[string]any{"type": self.role.name, "index": self.index},
			"environment": "cloud",
		})
		if err != nil {
			panic(err) // strings and numbers
		}
		return envspec.Input{Environ: append([]string{variable + "=" + string(text)}, more...)}
	}), job.aliases()
}

func tfConfigViews(t *rapid.T) ([]envspec.Input, []string) {
	return clusterViews(genJobs(t, `[A-Za-z0-9_]{1,8}`), "TF_CONFIG", drawPort(t))
}

func vertexViews(t *rapid.T) ([]envspec.Input, []string) {
	job := genJobs(t, `workerpool[0-9]`)
	return clusterViews(job, "CLUSTER_SPEC", append(drawPort(t), `TF_CONFIG={}`))
}

func volcanoViews(t *rapid.T) ([]envspec.Input, []string) {
	job := genJobs(t, `[a-z]([a-z0-9-]{0,6}[a-z0-9])?`)
	name, port, files := drawName(t, "job"), drawPort(t), rapid.Bool().Draw(t, "files only")
	// Volcano lists no tasks without pods. Names follow Kubernetes' rules.
	job.roles = slices.DeleteFunc(job.roles, func(r genRole) bool { return len(r.tasks) == 0 })
	for i, r := range job.roles {
		job.roles[i].name = strings.ReplaceAll(strings.ToLower(r.name), "_", "-")
	}
	leads := func(r genRole) int {
		for _, word := range []string{"master", "launcher", "leader", "chief", "head"} {
			if strings.Contains(r.name, word) {
				return 0
			}
		}
		return 1
	}
	slices.SortFunc(job.roles, func(a, b genRole) int {
		if d := leads(a) - leads(b); d != 0 {
			return d
		}
		return strings.Compare(a.name, b.name)
	})
	pod := func(role string, i int) string { return fmt.Sprintf("%s-%s-%d", name, role, i) }
	return job.inputs(func(self taskOf) envspec.Input {
		in := envspec.Input{
			Environ: append(
				vars("VC_TASK_INDEX", self.index, "VK_TASK_INDEX", self.index, "HOSTNAME",
					pod(self.role.name, self.index)),
				port...),
		}
		mapped := fstest.MapFS{}
		for _, role := range job.roles {
			var list []string
			for i := range role.tasks {
				list = append(list, pod(role.name, i)+"."+name)
			}
			plain := strings.ReplaceAll(role.name, "-", "_")
			if files {
				mapped["etc/volcano/"+plain+".host"] = &fstest.MapFile{Data: []byte(strings.Join(list, "\n"))}
			} else {
				in.Environ = append(in.Environ,
					fmt.Sprintf("VC_%s_HOSTS=%s", strings.ToUpper(plain), strings.Join(list, ",")))
			}
		}
		in.Files = mapped
		return in
	}), job.aliases()
}

func slurmViews(t *rapid.T) ([]envspec.Input, []string) {
	// A list has names and ranges. The test knows how many nodes each stands for.
	var items []string
	n := 0
	for i := range rapid.IntRange(1, 3).Draw(t, "items") {
		prefix := rapid.StringMatching(`[a-z]{1,4}(-[a-z0-9]{1,3})?`).Draw(t, "prefix") + fmt.Sprintf("%c", 'x'+i)
		low, count := rapid.IntRange(0, 20).Draw(t, "low"), rapid.IntRange(1, 5).Draw(t, "count")
		width := rapid.IntRange(1, 4).Draw(t, "width")
		switch rapid.IntRange(0, 3).Draw(t, "kind") {
		case 0:
			items, n = append(items, prefix), n+1
		case 1:
			items, n = append(items, fmt.Sprintf("%s[%0*d-%0*d]", prefix, width, low, width, low+count-1)), n+count
		case 2:
			items, n = append(items, fmt.Sprintf("%s[%d,%d-%d]-ib", prefix, 100+low, low, low+count-1)), n+1+count
		case 3:
			items, n = append(items, fmt.Sprintf("%s[0-1]n[%d-%d]", prefix, low, low+count-1)), n+2*count
		}
	}
	list, port := strings.Join(items, ","), drawPort(t)
	return views(n, func(i int) envspec.Input {
		env := vars("SLURM_JOB_ID", 7, "SLURM_STEP_ID", 0, "SLURM_STEP_NODELIST", list, "SLURM_NODEID", i,
			"SLURM_PROCID", i, "SLURM_LOCALID", 0, "SLURM_STEP_TASKS_PER_NODE", fmt.Sprintf("1(x%d)", n),
			"SLURM_JOB_NODELIST", list+",other")
		return envspec.Input{Environ: append(env, port...)}
	}), aliasesOf("worker", n)
}

// podViews are pods whose full names are in /etc/hosts.
func podViews(t *rapid.T, names []string, environment func(i int) []string) []envspec.Input {
	service, port := drawName(t, "service"), drawPort(t)
	return views(len(names), func(i int) envspec.Input {
		hosts := fmt.Sprintf("127.0.0.1\tlocalhost\n10.244.1.5\t%s.%s.default.svc.cluster.local\t%s\n", names[i],
			service, names[i])
		env := append(environment(i), vars("HOSTNAME", names[i], "PAIINIT_SIZE", len(names))...)
		return envspec.Input{Environ: append(env, port...), Files: fstest.MapFS{"etc/hosts": {Data: []byte(hosts)}}}
	})
}

func indexedJobViews(t *rapid.T) ([]envspec.Input, []string) {
	n := drawCount(t)
	return podViews(t, aliasesOf(drawName(t, "job"), n),
		func(i int) []string { return vars("JOB_COMPLETION_INDEX", i) }), aliasesOf("worker", n)
}

func jobSetViews(t *rapid.T) ([]envspec.Input, []string) {
	replicas, each, name := rapid.IntRange(1, 4).Draw(t, "jobs"), rapid.IntRange(1, 4).Draw(t, "pods"), drawName(t,
		"job")
	var pods []string
	for i := range replicas * each {
		pods = append(pods, fmt.Sprintf("%s-%d-%d", name, i/each, i%each))
	}
	return podViews(t, pods, func(i int) []string {
		return vars("JOB_COMPLETION_INDEX", i%each, "PAIINIT_JOB_INDEX", i/each, "PAIINIT_JOB_REPLICAS", replicas)
	}), aliasesOf("worker", replicas*each)
}

func statefulSetViews(t *rapid.T) ([]envspec.Input, []string) {
	n := drawCount(t)
	return podViews(t, aliasesOf(drawName(t, "set"), n), func(int) []string { return nil }), aliasesOf("worker", n)
}

func leaderWorkerSetViews(t *rapid.T) ([]envspec.Input, []string) {
	n, set, port := drawCount(t), drawName(t, "set"), drawPort(t)
	leader := fmt.Sprintf("%s-%d.%s.ns", set, rapid.IntRange(0, 9).Draw(t, "group"), drawName(t, "subdomain"))
	return views(n, func(i int) envspec.Input {
		return envspec.Input{
			Environ: append(vars("LWS_LEADER_ADDRESS", leader, "LWS_GROUP_SIZE", n, "LWS_WORKER_INDEX", i), port...),
		}
	}), aliasesOf("worker", n)
}

func awsBatchViews(t *rapid.T) ([]envspec.Input, []string) {
	n, port := drawCount(t), drawPort(t)
	main := rapid.IntRange(0, n-1).Draw(t, "main")
	return views(n, func(i int) envspec.Input {
		node := (main + i) % n
		env := vars("AWS_BATCH_JOB_ID", fmt.Sprintf("job#%d", node), "AWS_BATCH_JOB_NODE_INDEX", node,
			"AWS_BATCH_JOB_NUM_NODES", n, "AWS_BATCH_JOB_MAIN_NODE_INDEX", main, "AWS_BATCH_JOB_ATTEMPT", 1)
		if i > 0 {
			env = append(env, "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS=10.0.0.10")
		}
		return envspec.Input{Environ: append(env, port...)}
	}), aliasesOf("worker", n)
}

func sageMakerViews(t *rapid.T) ([]envspec.Input, []string) {
	n, port := drawCount(t), drawPort(t)
	var hosts []string
	for i := range n {
		hosts = append(hosts, fmt.Sprintf("algo-%d", i+1))
	}
	slices.Sort(hosts)
	return views(n, func(i int) envspec.Input {
		text, err := json.Marshal(map[string]any{"current_host": hosts[i], "hosts": hosts})
		if err != nil {
			t.Fatal(err)
		}
		return envspec.Input{
			Environ: port,
			Files:   fstest.MapFS{"opt/ml/input/config/resourceconfig.json": {Data: text}},
		}
	}), aliasesOf("worker", n)
}

func dstackViews(t *rapid.T) ([]envspec.Input, []string) {
	n, port := drawCount(t), drawPort(t)
	addrs := drawAddrs(t, n)
	known := slices.Clone(addrs)
	for i := 1; i < n; i++ {
		if rapid.Bool().Draw(t, "blank") {
			known[i] = ""
		}
	}
	return views(n, func(i int) envspec.Input {
		env := vars("DSTACK_NODES_IPS", strings.Join(known, "\n"), "DSTACK_MASTER_NODE_IP", addrs[0],
			"DSTACK_NODE_RANK", i, "DSTACK_NODES_NUM", n, "DSTACK_GPUS_PER_NODE", 8, "DSTACK_RUN_ID", "run")
		return envspec.Input{Environ: append(env, port...)}
	}), aliasesOf("worker", n)
}

func skyPilotViews(t *rapid.T) ([]envspec.Input, []string) {
	n, port := drawCount(t), drawPort(t)
	addrs := drawAddrs(t, n)
	return views(n, func(i int) envspec.Input {
		env := vars("SKYPILOT_NODE_IPS", strings.Join(addrs, "\n"), "SKYPILOT_NODE_RANK", i, "SKYPILOT_NUM_NODES", n,
			"SKYPILOT_NUM_GPUS_PER_NODE", 4)
		return envspec.Input{Environ: append(env, port...)}
	}), aliasesOf("worker", n)
}

func runPodViews(t *rapid.T) ([]envspec.Input, []string) {
	n, port := drawCount(t), drawPort(t)
	return views(n, func(i int) envspec.Input {
		env := vars("PRIMARY_ADDR", "10.65.0.2", "MASTER_ADDR", "10.65.0.2", "NODE_RANK", i, "NUM_NODES", n,
			"NUM_TRAINERS", 8, "WORLD_SIZE", 8*n)
		return envspec.Input{Environ: append(env, port...)}
	}), aliasesOf("worker", n)
}

func torchrunViews(t *rapid.T) ([]envspec.Input, []string) {
	n, port := drawCount(t), drawPort(t)
	return views(n, func(i int) envspec.Input {
		return envspec.Input{
			Environ: append(
				vars("MASTER_ADDR", "m-0", "RANK", i, "WORLD_SIZE", n, "MASTER_PORT", "tcp://10.0.0.1:80"),
				port...),
		}
	}), aliasesOf("worker", n)
}
