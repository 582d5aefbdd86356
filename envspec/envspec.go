// Package envspec turns the environment that a scheduler gives a container into one Job: who am I, who are the others,
// how many are we, and where do I find them.
//
// It hides every scheduler's variable names, spellings, generations and defects. What is derived is the same in every
// container of one job, so that all of them agree on ranks and names before they have spoken to each other; what the
// environment does not tell is -1 and has to be agreed upon later. Every derived field remembers the variable it came
// from.
//
// It does not read the process environment, open sockets, or read secrets: the caller passes the environment, the file
// system and a resolver in. It does not guess: an environment that contradicts itself is a *VarError, never a rank.
package envspec

import (
	"context"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
)

// DefaultPort is the port that paiinit listens on where no scheduler and no flag names one.
const DefaultPort = 12345

// Resolver answers the DNS questions of Read.
type Resolver interface {
	// LookupHost returns the addresses of a name.
	LookupHost(ctx context.Context, name string) ([]netip.Addr, error)
	// LookupPTR returns the names of an address, as the DNS server knows them: not as /etc/hosts does, where docker
	// puts the container's short id.
	LookupPTR(ctx context.Context, addr netip.Addr) ([]string, error)
}

// Input is everything that Read looks at.
type Input struct {
	// Environ is the environment, "NAME=value". Of a name that occurs twice the first one counts, as in getenv.
	Environ []string
	// Flags are values from the command line by the name of their variable ("PAIINIT_ROLE"). They win over Environ.
	Flags map[string]string
	// Files is the container's root directory; nil means no files.
	Files fs.FS
	// Resolver is asked for the own name under docker compose and for host names in a peer list; nil means no DNS.
	Resolver Resolver
	// Addrs are this container's own addresses.
	Addrs []netip.Addr
	// Hostname is this container's host name.
	Hostname string
	// CPUs is the number of CPUs that this process may run on; 0 means unknown.
	CPUs int
}

// Job is what an environment says about the job and this container's place in it. Its JSON form is that of
// `paiinit env --json`.
type Job struct {
	// System is the scheduler's name, one of Systems.
	System string `json:"system"`
	// ID names the job, the same in all of its containers; empty where the scheduler does not name it.
	ID string `json:"job"`
	// Attempt tells this run of the job from earlier ones of the same ID; empty where the scheduler does not count.
	Attempt string `json:"attempt"`
	// Role and Index name this container within the job; Index -1 is unknown.
	Role  string `json:"role"`
	Index int    `json:"index"`
	// Rank is this container's place among all Size containers; -1 is unknown. Size is -1 where only the launcher of the
	// job can know it; then Rank is known, and is not 0.
	Rank int `json:"rank"`
	Size int `json:"size"`
	// First says that this container is certain to be rank 0.
	First bool `json:"first"`
	// Order is the position of Role in rank order. Containers whose Rank is unknown are ranked by (Order, Index).
	Order int `json:"order"`
	// Slots is how many processes a launcher starts here. LaunchOnly says that 0 of them is meant: the container
	// launches, or serves, but computes nothing.
	Slots      int  `json:"slots"`
	LaunchOnly bool `json:"launch_only"`
	// GPUs is how many GPUs this container has, by the scheduler's word or else by its device nodes.
	GPUs int `json:"gpus"`
	// CPUs is how many processors this container may use, at least 1: its affinity, cut by the cgroup's quota.
	CPUs int `json:"-"`
	// Port is the TCP and UDP port that paiinit is to listen on here.
	Port int `json:"port"`
	// ServerPort says that Port is the one that the scheduler gave to a server of the job's own, because the other
	// containers are told no other: OpenPAI before 0.11.
	ServerPort bool `json:"-"`
	// Alias is the container's name: role-index, or the host name while the index is unknown.
	Alias string `json:"alias"`
	// Roles are the job's roles in rank order, as far as the environment names them.
	Roles []Role `json:"roles"`
	// Peers are all containers of the job in rank order, this one among them, where the environment lists them.
	Peers []Peer `json:"peers"`
	// Seeds are further places to look for the others, for where Peers does not tell.
	Seeds []Seed `json:"seeds"`
	// Secrets are places where the scheduler already shares a secret with all containers of the job, best first.
	// Read only looks whether they exist.
	Secrets []Secret `json:"secrets"`
	// AzureRDMA are the signs that this container was promised Azure's Network Direct fabric, of which package rdma knows
	// more: "paiAzRDMA", "/var/lib/hyperv", "/dev/hvnd_rdma", "/etc/dat.conf".
	AzureRDMA []string `json:"azure_rdma"`
	// Sources says for a field (by its JSON name) which variable, flag, file or DNS answer it came from.
	Sources map[string]string `json:"sources"`
	// Warnings are oddities that were overcome, one sentence each.
	Warnings []string `json:"warnings"`
}

// Role is a group of like containers.
type Role struct {
	Name string `json:"name"`
	// Count is the number of its containers, -1 if unknown.
	Count int `json:"count"`
	// LaunchOnly says that launchers start nothing in these containers.
	LaunchOnly bool `json:"launch_only"`
}

// Peer is one container of the job.
type Peer struct {
	Role  string `json:"role"`
	Index int    `json:"index"`
	// Rank is -1 if unknown.
	Rank  int    `json:"rank"`
	Alias string `json:"alias"`
	// Names are other names under which the scheduler's tools know the container.
	Names []string `json:"names"`
	// Host is a name or an address; empty if the environment does not tell it, as for a task that has not started.
	Host string `json:"host"`
	// Port is the port that this peer's paiinit listens on; 0 if unknown.
	Port int `json:"port"`
	// Slots is -1 if unknown.
	Slots int `json:"slots"`
	// Decided says that Slots is the job's decision, which is not told to the container itself.
	Decided bool `json:"-"`
}

// Seed is a place where other containers of the job may be found. A Host that is a DNS name may stand for many
// containers, more of them with time.
type Seed struct {
	Host string `json:"host"`
	Port int    `json:"port"`
	// Role is the role of all containers there, where the environment tells it: the job has at least one of them.
	Role string `json:"-"`
}

// Secret is a place where a secret is kept. Kind is "file", and Name then its absolute path.
type Secret struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
}

// scheduler is one row of the table that later schedulers join: a name, how to see that it is there, and how to read
// what it says.
type scheduler struct {
	name string
	// match returns the variable or file that gives the scheduler away, or "".
	match func(*reader) string
	// read fills in what the scheduler says. What it leaves is completed by settle.
	read func(*reader, *Job) error
	// parts are other schedulers whose signs belong to this one, and are no disagreement.
	parts []string
	// general marks a reader that serves where no scheduler is seen; it disagrees with nobody.
	general bool
}

// Names of schedulers on which others build.
const (
	tfConfig    = "tf-config"
	torchrun    = "torchrun"
	indexedJob  = "kubernetes-indexed-job"
	statefulSet = "kubernetes-statefulset"
)

// schedulers returns the table, the most specific first.
func schedulers() []scheduler {
	return []scheduler{
		{name: "openpai", match: matchOpenPAI, read: readOpenPAI},
		{name: "mpijob", match: matchMPIJob, read: readMPIJob, parts: []string{indexedJob}},
		{name: "volcano", match: matchVolcano, read: readVolcano, parts: []string{tfConfig, torchrun, statefulSet}},
		{name: "leaderworkerset", match: matchLeaderWorkerSet, read: readLeaderWorkerSet, parts: []string{statefulSet}},
		{name: "trainjob", match: matchTrainJob, read: readTrainJob, parts: []string{"pytorchjob", indexedJob, statefulSet}},
		{name: "pytorchjob", match: matchPyTorchJob, read: readPyTorchJob, parts: []string{torchrun, statefulSet}},
		{name: "sagemaker", match: matchSageMaker, read: readSageMaker, parts: []string{tfConfig, torchrun}},
		{name: "vertex", match: matchVertex, read: readVertex, parts: []string{tfConfig, torchrun}},
		{name: "aws-batch", match: matchAWSBatch, read: readAWSBatch, parts: []string{torchrun}},
		{name: "dstack", match: matchDstack, read: readDstack, parts: []string{torchrun}},
		{name: "skypilot", match: matchSkyPilot, read: readSkyPilot, parts: []string{torchrun}},
		{name: "runpod", match: matchRunPod, read: readRunPod, parts: []string{torchrun}},
		{name: "azure", match: matchAzure, read: readAzure, parts: []string{tfConfig, torchrun}},
		{name: tfConfig, match: matchTFConfig, read: readTFConfig, parts: []string{statefulSet}},
		{name: "slurm", match: matchSlurm, read: readSlurm, parts: []string{torchrun}},
		{name: "jobset", match: matchJobSet, read: readJobSet, parts: []string{indexedJob, statefulSet, torchrun}},
		{name: indexedJob, match: matchIndexedJob, read: readIndexedJob, parts: []string{statefulSet, torchrun}},
		{name: statefulSet, match: matchStatefulSet, read: readStatefulSet, parts: []string{torchrun}},
		{name: torchrun, match: matchTorchrun, read: readTorchrun},
		{name: "compose", match: matchCompose, read: readExplicit, general: true},
		{name: "explicit", match: matchExplicit, read: readExplicit, general: true},
		{name: "single", match: matchSingle, read: readSingle, general: true},
	}
}

// Systems returns the names that PAIINIT_SYSTEM may have, in the order of their detection.
func Systems() []string {
	var names []string
	for _, s := range schedulers() {
		names = append(names, s.name)
	}
	return names
}

// NestedVariables are the variables that Nested looks for, in this order.
func NestedVariables() []string {
	return []string{"PAIINIT_ACTIVE", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "TORCHELASTIC_RUN_ID"}
}

// Nested returns the variable that says that this process runs inside a rank that a launcher, or paiinit, has started
// already, so that there is nothing left to gather; or "".
func Nested(environ []string) string {
	set := make(map[string]bool)
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		if strings.TrimSpace(value) != "" {
			set[name] = true
		}
	}
	for _, name := range NestedVariables() {
		if set[name] {
			return name
		}
	}
	return ""
}

// Read derives the job from in. An environment that is contradictory or incomplete gives a *VarError; other errors are
// those of ctx, which also bounds what is asked of the resolver.
func Read(ctx context.Context, in Input) (Job, error) {
	r := newReader(ctx, in)
	job, err := readJob(r)
	if ctxErr := ctx.Err(); ctxErr != nil {
		return Job{}, ctxErr
	}
	if err != nil {
		return Job{}, err
	}
	return job, nil
}

func readJob(r *reader) (Job, error) {
	job := Job{
		Index: -1, Rank: -1, Size: -1,
		Roles: []Role{}, Peers: []Peer{}, Seeds: []Seed{}, Secrets: []Secret{}, AzureRDMA: []string{},
	}
	sched, err := r.detect(schedulers())
	if err != nil {
		return Job{}, err
	}
	job.System = sched.name
	r.system = sched.name
	steps := []func(*reader, *Job) error{
		func(r *reader, job *Job) error { return readScheduler(r, sched, job) },
		nameJob,
		findAzureRDMA,
		settle,
		spreadPorts,
		countSlots,
		choosePort,
		checkPeers,
	}
	for _, step := range steps {
		if err := step(r, &job); err != nil && r.contradiction != nil {
			return Job{}, r.contradiction
		} else if err != nil {
			return Job{}, err
		}
	}
	job.Sources = r.sources
	job.Warnings = r.warnings
	if r.contradiction != nil {
		r.contradiction.Job = &job
		return Job{}, r.contradiction
	}
	return job, nil
}

// readScheduler reads what the scheduler says, and an explicit list of peers over it: then what the scheduler does not say,
// or says wrong, does not matter.
func readScheduler(r *reader, sched scheduler, job *Job) error {
	err := sched.read(r, job)
	if !sched.general && r.has("PAIINIT_PEERS") {
		return readPeers(r, job)
	}
	return err
}

// detect chooses the scheduler: the one that is asked for, else the first that is seen.
func (r *reader) detect(table []scheduler) (scheduler, error) {
	if v, ok := r.get("PAIINIT_SYSTEM"); ok {
		for _, s := range table {
			if s.name == v.value {
				r.note("system", v)
				return s, nil
			}
		}
		var names []string
		for _, s := range table {
			names = append(names, s.name)
		}
		return scheduler{}, r.bad(v, "", "is not one of %s", quoteAll(names))
	}
	found := scheduler{}
	for _, s := range table {
		if found.name != "" && s.general {
			break
		}
		evidence := s.match(r)
		switch {
		case evidence == "":
		case found.name == "":
			found = s
			r.sources["system"] = evidence
		case slices.Contains(found.parts, s.name):
		default:
			r.warn("using %s, also saw %s (%s); override with PAIINIT_SYSTEM", found.name, s.name, evidence)
		}
	}
	return found, nil
}

// nameJob applies the explicit names of the job over the scheduler's.
func nameJob(r *reader, job *Job) error {
	for _, f := range []struct {
		name  string
		field *string
		env   string
	}{{"job", &job.ID, "PAIINIT_JOB"}, {"attempt", &job.Attempt, "PAIINIT_ATTEMPT"}} {
		v, ok := r.get(f.env)
		if !ok {
			continue
		}
		if strings.ContainsFunc(v.value, isControl) {
			return r.bad(v, "", "contains a control character")
		}
		*f.field = v.value
		r.note(f.name, v)
	}
	return nil
}
