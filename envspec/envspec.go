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
	Environ  []string          // "NAME=value". If a name occurs twice, the first one counts, as in getenv
	Flags    map[string]string // by the name of their variable ("PAIINIT_ROLE"). They win over Environ
	Files    fs.FS             // the container's root directory; nil means no files
	Resolver Resolver          // for docker compose and the host names of a peer list; nil means no DNS
	Addrs    []netip.Addr      // this container's own
	Hostname string            // this container's
	CPUs     int               // the number of CPUs that this process may run on; 0 means unknown
}

// Job is what an environment tells about the job and this container's place in it. `paiinit env --json` prints it.
type Job struct {
	System string `json:"system"` // the scheduler's name, one of Systems
	// ID names the job and is the same in all of its containers; empty if the scheduler does not name it.
	ID string `json:"job"`
	// Attempt tells this run of the job from earlier runs with the same ID; empty if the scheduler does not count them.
	Attempt string `json:"attempt"`
	// Role and Index name this container within the job; Index -1 is unknown.
	Role  string `json:"role"`
	Index int    `json:"index"`
	// Rank is this container's place among all Size containers; -1 is unknown. Size is -1 where only the job's launcher
	// knows it. Then Rank is known and not 0.
	Rank  int  `json:"rank"`
	Size  int  `json:"size"`
	First bool `json:"first"` // this container is certain to be rank 0
	Order int  `json:"order"` // the position of Role in rank order: (Order, Index) ranks containers of unknown Rank
	// Slots is the number of processes that a launcher starts here. LaunchOnly says that 0 is intended: the container
	// launches or serves, and computes nothing.
	Slots      int  `json:"slots"`
	LaunchOnly bool `json:"launch_only"`
	GPUs       int  `json:"gpus"` // of this container, from the scheduler or else from its device nodes
	CPUs       int  `json:"-"`    // usable here, at least 1: the affinity, limited by the cgroup's quota
	Port       int  `json:"port"` // TCP and UDP, where paiinit listens here
	// ServerPort says that the scheduler meant Port for a server of the job: OpenPAI before 0.11 tells the other
	// containers no other port.
	ServerPort bool   `json:"-"`
	Alias      string `json:"alias"` // role-index, or the host name if the index is unknown
	// Name is the container's name in the scheduler's tools, such as a pod's; Alias if the scheduler has no other one.
	Name  string `json:"name"`
	Roles []Role `json:"roles"` // in rank order, as far as the environment tells them
	Peers []Peer `json:"peers"` // all containers in rank order, with this one; empty if none are listed
	Seeds []Seed `json:"seeds"` // further places to look for other containers
	// Secrets are places where the scheduler shares a secret with all containers of the job, best first. Read checks
	// only that they exist.
	Secrets []Secret `json:"secrets"`
	// AzureRDMA are the signs that the job asked for Azure's Network Direct: "paiAzRDMA", "/var/lib/hyperv",
	// "/dev/hvnd_rdma", "/etc/dat.conf".
	AzureRDMA []string `json:"azure_rdma"`
	// Sources tells for a field, by its JSON name, the variable, flag, file or DNS answer that it came from.
	Sources  map[string]string `json:"sources"`
	Warnings []string          `json:"warnings"` // problems that Read could work around, one sentence each
	// Sign is a variable that speaks of a job of several containers, if this one is alone only because nothing tells
	// how many there are.
	Sign string `json:"-"`
}

// Role is a group of containers that do the same work.
type Role struct {
	Name       string `json:"name"`
	Count      int    `json:"count"`       // the number of its containers, -1 if unknown
	LaunchOnly bool   `json:"launch_only"` // launchers start nothing in these containers
}

// Peer is one container of the job.
type Peer struct {
	Role  string   `json:"role"`
	Index int      `json:"index"`
	Rank  int      `json:"rank"` // -1 if unknown
	Alias string   `json:"alias"`
	Name  string   `json:"name"`  // in the scheduler's tools, as the environment predicts it; else Alias
	Names []string `json:"names"` // further names that the scheduler's tools use for the container
	// Host is a name or an address; empty if the environment does not tell it, as for a task that has not started.
	Host    string `json:"host"`
	Port    int    `json:"port"`  // where the peer's paiinit listens; 0 is unknown
	Slots   int    `json:"slots"` // the number of processes that a launcher starts there; -1 is unknown
	Decided bool   `json:"-"`     // a host list of the job gives Slots, which the container itself may not see
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
	name    string
	match   func(*reader) string // returns the variable or file that shows the scheduler, or ""
	read    func(*reader, *Job)  // fills in what the scheduler tells. settle completes the rest
	parts   []string             // schedulers whose variables this one sets as well: seeing them causes no warning
	general bool                 // used if no scheduler is seen. It never causes a warning
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
		{name: "trainjob", match: matchTrainJob, read: readTrainJob,
			parts: []string{"pytorchjob", indexedJob, statefulSet}},
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
	for _, name := range NestedVariables() {
		for _, entry := range environ {
			if value, ok := strings.CutPrefix(entry, name+"="); ok && strings.TrimSpace(value) != "" {
				return name
			}
		}
	}
	return ""
}

// Read derives the job from in. A contradictory or incomplete environment gives a *VarError. All other errors come
// from ctx, which also bounds the questions to the resolver.
func Read(ctx context.Context, in Input) (Job, error) {
	r := newReader(ctx, in)
	var job Job
	err := catch(func() { job = readJob(r) })
	switch {
	case ctx.Err() != nil:
		return Job{}, ctx.Err()
	case r.contradiction != nil:
		return Job{}, r.contradiction
	case err != nil:
		return Job{}, err
	}
	return job, nil
}

func readJob(r *reader) Job {
	job := Job{
		Index: -1, Rank: -1, Size: -1,
		Roles: []Role{}, Peers: []Peer{}, Seeds: []Seed{}, Secrets: []Secret{}, AzureRDMA: []string{},
	}
	sched, err := r.detect(schedulers())
	if err != nil {
		panic(err)
	}
	job.System, r.system = sched.name, sched.name
	problem := catch(func() { sched.read(r, &job) })
	if !sched.general && r.has("PAIINIT_PEERS") {
		readPeers(r, &job) // replaces what the scheduler tells about peers: then its errors do not matter
	} else if problem != nil {
		panic(problem)
	}
	nameJob(r, &job)
	findAzureRDMA(r, &job)
	settle(r, &job)
	nameContainers(r, &job)
	spreadPorts(r, &job)
	countSlots(r, &job)
	choosePort(r, &job)
	checkPeers(r, &job)
	job.Sign = signOfOthers(r, &job)
	job.Sources = r.sources
	job.Warnings = r.warnings
	if r.contradiction != nil {
		r.contradiction.Job = &job
	}
	return job
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
		return scheduler{}, r.bad(v, "", "is not one of %s", quoteAll(Systems()))
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
func nameJob(r *reader, job *Job) {
	replace := func(name *string, field, env string) {
		v, ok := r.get(env)
		if !ok {
			return
		}
		if strings.ContainsFunc(v.value, isControl) {
			panic(r.bad(v, "", "contains a control character"))
		}
		*name = v.value
		r.note(field, v)
	}
	replace(&job.ID, "job", "PAIINIT_JOB")
	replace(&job.Attempt, "attempt", "PAIINIT_ATTEMPT")
}
