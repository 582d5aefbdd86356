// Package envspec turns the environment that a scheduler gives a container into one Job: this container's role and
// rank, the other containers, how many there are, and where to find them.
//
// It hides every scheduler's variable names, spellings, generations and defects. All containers of a job derive the
// same ranks and names before they have talked to each other. What the environment does not tell is -1, and the
// containers agree on it later. Sources names the variable that each derived field came from.
//
// The package does not read the process environment, open sockets, or read secrets: the caller passes the environment,
// the file system and a resolver. It does not guess: an environment that contradicts itself gives a *VarError.
package envspec

import (
	"context"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
)

// defaultPort is the port that paiinit listens on if neither a scheduler nor a flag gives one.
const defaultPort = 12345

// Resolver answers the DNS questions of Read.
type Resolver interface {
	// LookupHost returns the addresses of a name.
	LookupHost(ctx context.Context, name string) ([]netip.Addr, error)
	// LookupPTR returns the names that the DNS server has for an address. It must not read /etc/hosts, where docker
	// puts the container's short id.
	LookupPTR(ctx context.Context, addr netip.Addr) ([]string, error)
}

// Input is everything that Read looks at.
type Input struct {
	// Environ is the environment, "NAME=value". If a name occurs twice, the first one counts, as in getenv.
	Environ []string
	// Flags are values from the command line by the name of their variable ("PAIINIT_ROLE"). They win over Environ.
	Flags map[string]string
	// Files is the container's root directory; nil means no files.
	Files fs.FS
	// Resolver looks up this container's name under docker compose and the host names of a peer list; nil means no DNS.
	Resolver Resolver
	// Addrs are this container's own addresses.
	Addrs []netip.Addr
	// Hostname is this container's host name.
	Hostname string
	// CPUs is the number of CPUs that this process may run on; 0 means unknown.
	CPUs int
}

// Job is what an environment tells about the job and this container's place in it. `paiinit env --json` prints it.
type Job struct {
	// System is the scheduler's name, one of Systems.
	System string `json:"system"`
	// ID names the job and is the same in all of its containers; empty if the scheduler does not name it.
	ID string `json:"job"`
	// Attempt tells this run of the job from earlier runs with the same ID; empty if the scheduler does not count them.
	Attempt string `json:"attempt"`
	// Role and Index name this container within the job; Index -1 is unknown.
	Role  string `json:"role"`
	Index int    `json:"index"`
	// Rank is this container's place among all Size containers; -1 is unknown. Size is -1 where only the job's launcher
	// knows it. Then Rank is known and not 0.
	Rank int `json:"rank"`
	Size int `json:"size"`
	// First says that this container is certain to be rank 0.
	First bool `json:"first"`
	// Order is the position of Role in rank order. (Order, Index) ranks containers whose Rank is unknown.
	Order int `json:"order"`
	// Slots is the number of processes that a launcher starts here. LaunchOnly says that 0 is intended: the container
	// launches or serves, and computes nothing.
	Slots      int  `json:"slots"`
	LaunchOnly bool `json:"launch_only"`
	// GPUs is the number of GPUs of this container, from the scheduler or else from its device nodes.
	GPUs int `json:"gpus"`
	// CPUs is the number of processors that this container may use, at least 1: its affinity, limited by the cgroup's
	// quota.
	CPUs int `json:"-"`
	// Port is the TCP and UDP port that paiinit listens on here.
	Port int `json:"port"`
	// ServerPort says that the scheduler meant Port for a server of the job: OpenPAI before 0.11 tells the other
	// containers no other port.
	ServerPort bool `json:"-"`
	// Alias is the container's name: role-index, or the host name if the index is unknown.
	Alias string `json:"alias"`
	// Roles are the job's roles in rank order, as far as the environment tells them.
	Roles []Role `json:"roles"`
	// Peers are all containers of the job in rank order, including this one; empty if the environment does not list
	// them.
	Peers []Peer `json:"peers"`
	// Seeds are further places to look for other containers.
	Seeds []Seed `json:"seeds"`
	// Secrets are places where the scheduler shares a secret with all containers of the job, best first. Read checks
	// only that they exist.
	Secrets []Secret `json:"secrets"`
	// AzureRDMA are the signs that the job asked for Azure's Network Direct: "paiAzRDMA", "/var/lib/hyperv",
	// "/dev/hvnd_rdma", "/etc/dat.conf".
	AzureRDMA []string `json:"azure_rdma"`
	// Sources tells for a field, by its JSON name, the variable, flag, file or DNS answer that it came from.
	Sources map[string]string `json:"sources"`
	// Warnings are problems that Read could work around, one sentence each.
	Warnings []string `json:"warnings"`
}

// Role is a group of containers that do the same work.
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
	// Names are further names that the scheduler's tools use for the container.
	Names []string `json:"names"`
	// Host is a name or an address; empty if the environment does not tell it, as for a task that has not started.
	Host string `json:"host"`
	// Port is the port that the peer's paiinit listens on; 0 is unknown.
	Port int `json:"port"`
	// Slots is the number of processes that a launcher starts there; -1 is unknown.
	Slots int `json:"slots"`
	// Decided says that a host list of the job gives Slots, which the container itself may not see.
	Decided bool `json:"-"`
}

// Seed is a place where other containers of the job may be found. If Host is a DNS name, it may stand for many
// containers, and for more while they start.
type Seed struct {
	Host string `json:"host"`
	Port int    `json:"port"`
	// Role is the role of all containers there, if the environment tells it. The job has at least one such container.
	Role string `json:"-"`
}

// Secret is a place that holds a secret. Kind is "file" and Name its absolute path.
type Secret struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
}

// scheduler is one row of the table: a scheduler's name, how to detect it, and how to read what it tells.
type scheduler struct {
	name string
	// match returns the variable or file that shows the scheduler, or "".
	match func(*reader) string
	// read fills in what the scheduler tells. settle completes the rest.
	read func(*reader, *Job) error
	// parts are schedulers whose variables this one sets as well. Seeing them causes no warning.
	parts []string
	// general marks a row that is used if no scheduler is seen. It never causes a warning.
	general bool
}

// Names of schedulers that are parts of others.
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
		{
			name:  "trainjob",
			match: matchTrainJob,
			read:  readTrainJob,
			parts: []string{"pytorchjob", indexedJob, statefulSet},
		},
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

// NestedVariables returns the variables that Nested looks for, in this order.
func NestedVariables() []string {
	return []string{"PAIINIT_ACTIVE", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "TORCHELASTIC_RUN_ID"}
}

// Nested returns the variable that shows that a launcher or paiinit started this process as a rank, so that there is
// nothing to gather; or "".
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

// Read derives the job from in. A contradictory or incomplete environment gives a *VarError. All other errors are those
// of ctx, which also bounds the questions to the resolver.
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

// readScheduler reads what the scheduler tells. PAIINIT_PEERS replaces its peers; then its errors do not matter.
func readScheduler(r *reader, sched scheduler, job *Job) error {
	err := sched.read(r, job)
	if !sched.general && r.has("PAIINIT_PEERS") {
		return readPeers(r, job)
	}
	return err
}

// detect returns the scheduler that PAIINIT_SYSTEM names, else the first scheduler that the environment shows.
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

// nameJob lets PAIINIT_JOB and PAIINIT_ATTEMPT replace the scheduler's names.
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
