package envspec_test

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/paiinit/paiinit/envspec"
)

// checkViews reads the environments of all tasks of a job, in rank order, and asserts that they agree on ranks, names
// and places, and on the slots that they know. Some schedulers tell only the first task where the others are, or only
// the others where the first one is.
func checkViews(t require.TestingT, inputs []envspec.Input, aliases []string) {
	var jobs []envspec.Job
	for i, in := range inputs {
		job, err := envspec.Read(context.Background(), in)
		require.NoError(t, err, aliases[i])
		require.Equal(t, aliases[i], job.Alias)
		if job.Size != -1 || i == 0 {
			require.Equal(t, len(inputs), job.Size, aliases[i])
		}
		require.Contains(t, []int{-1, i}, job.Rank, aliases[i])
		require.Equal(t, i == 0, job.First, aliases[i])
		jobs = append(jobs, job)
	}
	require.True(t, slices.IsSortedFunc(jobs, func(a, b envspec.Job) int {
		return cmp.Or(cmp.Compare(a.Order, b.Order), cmp.Compare(a.Index, b.Index))
	}), "(Order, Index) orders as the ranks do")
	var peers []envspec.Peer // of the first task that has a list
	var seeds []envspec.Seed
	for i, job := range jobs {
		if job.Size != -1 && jobs[0].Size != -1 {
			require.Equal(t, jobs[0].Roles, job.Roles, aliases[i])
		}
		require.Equal(t, jobs[0].ID, job.ID)
		require.Equal(t, jobs[0].Attempt, job.Attempt)
		if len(seeds) == 0 {
			seeds = job.Seeds
		}
		if len(job.Seeds) > 0 || len(seeds) > 0 && job.Rank != 0 {
			require.Equal(t, seeds, job.Seeds, aliases[i])
		}
		if peers == nil && len(job.Peers) > 0 {
			peers = slices.Clone(job.Peers)
		}
		// Every other task can find the first one, or be found by it.
		if i > 0 && len(jobs[0].Peers) == 0 {
			require.NotEmpty(t, job.Seeds, aliases[i])
		}
		if len(job.Peers) == 0 {
			continue
		}
		require.Len(t, job.Peers, len(peers))
		for k, p := range job.Peers {
			require.Equal(t, aliases[k], p.Alias)
			require.Equal(t, k, p.Rank)
			// A launcher may have a list of slots that the other tasks do not see.
			if p.Slots != -1 && len(jobs[k].Peers) > 0 {
				require.Equal(t, jobs[k].Slots, p.Slots, "%s about %s", aliases[i], p.Alias)
			}
			if p.Host != "" {
				require.Equal(t, jobs[k].Port, p.Port, "%s about %s", aliases[i], p.Alias)
			}
			want := peers[k]
			p.Slots, want.Slots, p.Decided, want.Decided = -1, -1, false, false
			if want.Host == "" || p.Host == "" { // every container knows its own place
				p.Host, p.Port, want.Host, want.Port = "", 0, "", 0
			}
			require.Equal(t, want, p, aliases[i])
		}
	}
	places := make(map[string]bool)
	for _, p := range peers {
		if place := p.Host + ":" + strconv.Itoa(p.Port); p.Host != "" {
			require.False(t, places[place], "two containers at %s", place)
			places[place] = true
		}
	}
}

// A genJob is a job before any scheduler has described it.
type genJob struct {
	roles []genRole // in declared order
}

type genRole struct {
	name  string
	gpus  int
	tasks []genTask
}

type genTask struct {
	ip        string
	http, ssh int
}

// genJobs draws a job whose roles have names of the form.
func genJobs(t *rapid.T, form string) genJob {
	known := rapid.SampledFrom(
		[]string{"worker", "master", "ps", "chief", "Main", "trainer", "server", "mpi", "ps_server"})
	names := rapid.SliceOfNDistinct(rapid.OneOf(known, rapid.StringMatching(form)), 1, 4, runtimeName).Draw(t, "roles")
	var job genJob
	port := 10000
	for i, name := range names {
		least := 0
		if i == 0 {
			least = 1
		}
		role := genRole{name: name, gpus: rapid.IntRange(0, 3).Draw(t, "gpus")}
		for range rapid.IntRange(least, 4).Draw(t, "tasks") {
			// Few addresses, so that many tasks share one.
			ip := fmt.Sprintf("10.0.0.%d", rapid.IntRange(1, 3).Draw(t, "ip"))
			role.tasks = append(role.tasks, genTask{ip, port, port + 1})
			port += 2
		}
		job.roles = append(job.roles, role)
	}
	return job
}

// runtimeName returns OpenPAI's runtime name of a role. Roles of one job must not share it.
func runtimeName(role string) string {
	var b strings.Builder
	for _, c := range strings.ToLower(role) {
		if strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789", c) {
			b.WriteRune(c)
		}
	}
	return b.String()
}

type taskOf struct {
	role  genRole
	index int
}

// ranked returns the tasks in rank order: launchers first, servers last, the declared order between.
func (j genJob) ranked() []taskOf {
	class := func(role string) int {
		switch strings.ToLower(role) {
		case "master", "main", "launcher", "chief", "mpi", "head", "scheduler", "leader", "workerpool0":
			return 0
		}
		switch runtimeName(role) {
		case "ps", "psserver", "server", "parameterserver", "evaluator":
			return 2
		}
		return 1
	}
	var list []taskOf
	for c := range 3 {
		for _, role := range j.roles {
			if class(role.name) != c {
				continue
			}
			for i := range role.tasks {
				list = append(list, taskOf{role, i})
			}
		}
	}
	return list
}

func (j genJob) aliases() []string {
	var list []string
	for _, task := range j.ranked() {
		list = append(list, task.role.name+"-"+strconv.Itoa(task.index))
	}
	return list
}

// inputs returns every task's environment, in rank order.
func (j genJob) inputs(describe func(taskOf) envspec.Input) []envspec.Input {
	var list []envspec.Input
	for _, task := range j.ranked() {
		list = append(list, describe(task))
	}
	return list
}

// openPAI describes a job as OpenPAI does: generation 0 is up to 0.10, 1 is 0.11 to 1.0, 2 is Kubernetes.
func (j genJob) openPAI(generation int) func(taskOf) envspec.Input {
	return func(self taskOf) envspec.Input {
		var env []string
		set := func(name string, value any) { env = append(env, fmt.Sprintf("%s=%v", name, value)) }
		var names []string
		total := 0
		for _, role := range j.roles {
			names = append(names, role.name)
			total += len(role.tasks)
		}
		task := self.role.tasks[self.index]
		set("PAI_JOB_NAME", "alice~job")
		set("PAI_TASK_ROLE_LIST", strings.Join(names, ","))
		set("PAI_JOB_TASK_ROLE_LIST", strings.Join(names, ","))
		set("PAI_TASKS_NUM", total)
		set("PAI_CURRENT_TASK_ROLE_NAME", self.role.name)
		set("PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX", self.index)
		set("PAI_CONTAINER_HOST_IP", task.ip)
		set("PAI_CONTAINER_HOST_PORT_LIST", fmt.Sprintf("http:%d;ssh:%d;", task.http, task.ssh))
		if generation == 2 {
			set("FC_TASKROLE_NAME", runtimeName(self.role.name))
			set("FC_FRAMEWORK_ATTEMPT_INSTANCE_UID", "0_uid")
		} else {
			set("APP_ID", "application_1_1")
			set("PAI_CURRENT_TASK_ROLE_TASK_COUNT", len(self.role.tasks))
			set("PAI_CURRENT_TASK_ROLE_GPU_COUNT", self.role.gpus)
		}
		for _, role := range j.roles {
			var list []string
			name := role.name
			if generation == 2 {
				set("PAI_RESOURCE_"+role.name, fmt.Sprintf("%d,4,1024,0", role.gpus))
				name = runtimeName(name)
			}
			if generation > 0 {
				set("PAI_TASK_ROLE_TASK_COUNT_"+role.name, len(role.tasks))
			}
			for i, task := range role.tasks {
				list = append(list, fmt.Sprintf("%s:%d", task.ip, task.http))
				if generation > 0 {
					set(fmt.Sprintf("PAI_HOST_IP_%s_%d", name, i), task.ip)
					set(fmt.Sprintf("PAI_PORT_LIST_%s_%d_ssh", name, i), task.ssh)
					set(fmt.Sprintf("PAI_PORT_LIST_%s_%d_http", name, i), task.http)
				}
			}
			set("PAI_TASK_ROLE_"+name+"_HOST_LIST", strings.Join(list, ","))
		}
		return envspec.Input{Environ: env, CPUs: 2}
	}
}

func TestOpenPAIAgrees(t *testing.T) {
	for generation, form := range []string{
		`[A-Za-z0-9_~.]{0,6}[A-Za-z0-9]`, `[A-Za-z0-9_~.]{0,6}[A-Za-z0-9]`, `[A-Za-z_][A-Za-z0-9_]{0,6}[a-z]`,
	} {
		t.Run(strconv.Itoa(generation), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				job := genJobs(t, form)
				inputs := job.inputs(job.openPAI(generation))
				checkViews(t, inputs, job.aliases())
				for i, task := range job.ranked() {
					got, err := envspec.Read(context.Background(), inputs[i])
					require.NoError(t, err)
					require.Len(t, got.Peers, len(inputs))
					self := task.role.tasks[task.index]
					port := self.ssh
					if generation == 0 {
						port = self.http
					}
					require.Equal(t, i, got.Rank)
					require.Equal(t, []any{self.ip, port}, []any{got.Peers[i].Host, got.Peers[i].Port})
					if got.Slots != 0 && task.role.gpus > 0 {
						require.Equal(t, task.role.gpus, got.Slots)
					}
				}
			})
		})
	}
}

func TestListAgrees(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		job := genJobs(t, `[A-Za-z0-9_~.][A-Za-z0-9_~.-]{0,6}[A-Za-z0-9]`)
		var named []string
		for _, role := range job.roles {
			for i, task := range role.tasks {
				named = append(named, fmt.Sprintf("%s-%d=%s:%d", role.name, i, task.ip, task.ssh))
			}
		}
		byName := job.inputs(func(self taskOf) envspec.Input {
			return envspec.Input{Flags: map[string]string{
				"PAIINIT_PEERS": strings.Join(named, ","),
				"PAIINIT_ROLE":  self.role.name,
				"PAIINIT_INDEX": strconv.Itoa(self.index),
			}}
		})
		checkViews(t, byName, job.aliases())
		byPlace := job.inputs(func(self taskOf) envspec.Input {
			task := self.role.tasks[self.index]
			return envspec.Input{
				Environ: []string{
					"PAIINIT_PEERS=" + strings.Join(named, ","),
					"PAIINIT_PORT=" + strconv.Itoa(task.ssh),
				},
				Addrs: []netip.Addr{netip.MustParseAddr(task.ip)},
			}
		})
		checkViews(t, byPlace, job.aliases())
		// Without names, the order of the list gives the ranks.
		var plain, aliases []string
		var byRank []envspec.Input
		for i, task := range job.ranked() {
			place := task.role.tasks[task.index]
			plain = append(plain, fmt.Sprintf("%s:%d", place.ip, place.ssh))
			aliases = append(aliases, fmt.Sprintf("worker-%d", i))
		}
		for i := range plain {
			byRank = append(byRank, envspec.Input{Environ: []string{
				"PAIINIT_PEERS=" + strings.Join(plain, ","), "PAIINIT_RANK=" + strconv.Itoa(i),
			}})
		}
		checkViews(t, byRank, aliases)
	})
}

func TestComposeAgrees(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		job := genJobs(t, `[a-z][a-z0-9_-]{0,6}[a-z0-9]`)
		ranked := job.ranked()
		// If the first service has no containers, no task knows that it is the first.
		for first := firstDeclared(job); ranked[0].role.name != first; first = firstDeclared(job) {
			job.roles = slices.DeleteFunc(job.roles, func(r genRole) bool { return r.name == first })
		}
		if ranked[0].index != 0 {
			t.Fatalf("rank 0 is %v", ranked[0])
		}
		dns := fakeDNS{ptrs: map[netip.Addr][]string{}}
		var names []string
		for _, role := range job.roles {
			names = append(names, "dns:"+role.name)
		}
		addr := func(rank int) netip.Addr { return netip.AddrFrom4([4]byte{172, 19, 1, byte(rank + 2)}) }
		join := rapid.SampledFrom([]string{"-", "_"}).Draw(t, "join")
		for i, task := range ranked {
			dns.ptrs[addr(i)] = []string{
				strings.Join([]string{"my-app", task.role.name, strconv.Itoa(task.index + 1)},
					join) + ".my-app_default.",
			}
		}
		var inputs []envspec.Input
		for i, task := range ranked {
			inputs = append(inputs, envspec.Input{
				Environ: []string{
					"PAIINIT_PEERS=" + strings.Join(names, ","),
					"PAIINIT_SIZE=" + strconv.Itoa(len(ranked)),
					"PAIINIT_ROLE=" + task.role.name,
				},
				Resolver: dns, Addrs: []netip.Addr{addr(i)}, CPUs: 1,
			})
		}
		checkViews(t, inputs, job.aliases())
	})
}

// firstDeclared returns the role that ranks first, with or without containers.
func firstDeclared(j genJob) string {
	full := genJob{roles: slices.Clone(j.roles)}
	for i := range full.roles {
		full.roles[i].tasks = make([]genTask, 1)
	}
	return full.ranked()[0].role.name
}
