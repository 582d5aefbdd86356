package envspec

import (
	"slices"
	"strings"
)

// launcherNames are the names that jobs give the role that runs mpirun, in OpenPAI's examples and marketplace, Kubeflow
// and Vertex AI.
var launcherNames = []string{"master", "main", "launcher", "chief", "mpi", "head", "scheduler", "leader", "workerpool0"}

// serverNames are roles that serve the others and take no part in an MPI job.
var serverNames = []string{"ps", "psserver", "server", "parameterserver", "evaluator"}

// rankClass sorts roles: launchers first, servers last, the others between.
func rankClass(role string) int {
	switch {
	case launcherLike(role):
		return 0
	case slices.Contains(serverNames, lettersAndDigits(role)):
		return 2
	}
	return 1
}

func launcherLike(role string) bool { return slices.Contains(launcherNames, strings.ToLower(role)) }

// rankRoles sorts job.Roles into rank order, decides which of them compute nothing, and ranks job.Peers. It returns the
// first rank of each role, -1 if unknown. Calling it twice is harmless.
func rankRoles(r *reader, job *Job) (start map[string]int) {
	// Roles come in the order that the job declares, which breaks ties.
	roles := make([]Role, 0, len(job.Roles))
	for class := range 3 {
		for _, role := range job.Roles {
			if rankClass(role.Name) == class {
				roles = append(roles, role)
			}
		}
	}
	copy(job.Roles, roles)
	withGPU, compute := false, false
	for _, role := range job.Roles {
		withGPU = withGPU || r.gpus[role.Name] > 0
		compute = compute || rankClass(role.Name) != 2
	}
	order := make(map[string]int, len(job.Roles))
	start = make(map[string]int, len(job.Roles))
	next := 0
	for i := range job.Roles {
		role := &job.Roles[i]
		gpus, known := r.gpus[role.Name]
		role.LaunchOnly = i == 0 && known && gpus == 0 && withGPU || compute && rankClass(role.Name) == 2 ||
			r.launchOnly[role.Name]
		order[role.Name], start[role.Name] = i, next
		if next >= 0 && role.Count >= 0 {
			next += role.Count
		} else {
			next = -1
		}
	}
	for i := range job.Peers {
		p := &job.Peers[i]
		p.Alias = alias(p.Role, p.Index)
		if p.Names == nil {
			p.Names = []string{}
		}
		p.Rank = -1
		if start[p.Role] >= 0 {
			p.Rank = start[p.Role] + p.Index
		}
		p.Slots = -1
		if job.Roles[order[p.Role]].LaunchOnly {
			p.Slots = 0
		} else if s := r.slotsOf(p.Role, p.Index); s.from.name != "" {
			p.Slots = s.n
			_, p.Decided = r.slots[peerKey{p.Role, p.Index}]
		} else if n := r.gpus[p.Role]; n > 0 {
			p.Slots = n
		}
	}
	// By role and index (-1 to maxTasks), then in the order they came. Sorting numbers instead of peers makes the
	// program 15 kB smaller.
	keys := make([]int, len(job.Peers))
	for i := range keys {
		keys[i] = (order[job.Peers[i].Role]*(maxTasks+2)+job.Peers[i].Index+1)*len(keys) + i
	}
	slices.Sort(keys)
	peers := make([]Peer, len(keys))
	for i, key := range keys {
		peers[i] = job.Peers[key%len(keys)]
	}
	copy(job.Peers, peers)
	return start
}

// settle derives rank and size from roles, index and explicit values, and refuses contradictions.
func settle(r *reader, job *Job) {
	start := rankRoles(r, job)[job.Role]
	settleSize(r, job)
	checkAlone(r, job)
	var own Role
	if at := slices.Index(roleNames(job.Roles), job.Role); at >= 0 {
		own, job.Order = job.Roles[at], at
	}
	job.LaunchOnly = own.LaunchOnly
	checkIndex(r, job, own)
	if start >= 0 && job.Index >= 0 && (start+job.Index < job.Size || job.Size < 0) {
		job.Rank = start + job.Index
		r.sources["rank"] = r.sources["index"]
	}
	rank, v, ok := r.number(0, maxTasks, "PAIINIT_RANK")
	switch {
	case ok && job.Size >= 0 && rank >= job.Size:
		panic(r.fail(v, "", "%s=%d is outside 0..%d (%s)", v.name, rank, job.Size-1, r.sources["size"]))
	case ok && job.Rank >= 0 && rank != job.Rank:
		panic(r.fail(v, "leave one of them out", "%s=%d but %s is rank %d (%s)", v.name, rank,
			alias(job.Role, job.Index), job.Rank, r.sources["index"]))
	case ok:
		job.Rank = rank
		r.note("rank", v)
	}
	job.First = job.Rank == 0
	job.Alias = r.in.Hostname
	if job.Index >= 0 {
		job.Alias = alias(job.Role, job.Index)
	}
}

func settleSize(r *reader, job *Job) {
	total, known := 0, len(job.Roles) > 0
	for _, role := range job.Roles {
		known = known && role.Count >= 0
		total += max(role.Count, 0)
	}
	size, v, ok := r.number(1, maxTasks, "PAIINIT_SIZE")
	switch {
	case ok && known && size != total:
		r.contradiction = r.fail(v, "leave it out or make them equal", "%s=%d but %s gives %d", v.name, size,
			r.sources["size"], total)
		if job.Size = total; total == 0 {
			panic(r.contradiction)
		}
	case ok:
		job.Size = size
		r.note("size", v)
	case known:
		job.Size = total
	case r.openSize:
	default:
		panic(r.fail(variable{name: "PAIINIT_SIZE"}, "set it to the number of containers of the job",
			"PAIINIT_SIZE is not set and %s does not tell how many containers there are", evidence(r)))
	}
	if job.Size > maxTasks {
		panic(r.fail(variable{name: r.sources["size"]}, "", "%s gives %d containers, more than %d", r.sources["size"],
			job.Size, maxTasks))
	}
}

// evidence returns a variable that shows that there is more than one container.
func evidence(r *reader) string {
	for _, name := range []string{"PAIINIT_PEERS", "PAIINIT_ROLE", "PAIINIT_INDEX", "PAIINIT_RANK"} {
		if v, ok := r.get(name); ok {
			return v.name + "=" + quote(v.value)
		}
	}
	return r.sources["system"]
}

// checkIndex refuses an index that is outside of the known range.
func checkIndex(r *reader, job *Job, own Role) {
	switch {
	case job.Index < 0:
		return
	case own.Count >= 0 && job.Index >= own.Count:
		v := r.counts[job.Role]
		if own.Count == 0 {
			panic(r.fail(v, "", "role %q of this container (%s) has no containers (%s=%s)", job.Role,
				r.sources["role"], v.name, quotePlain(v.value)))
		}
		panic(r.fail(v, "", "index %d of role %q is outside 0..%d (%s=%s)", job.Index, job.Role, own.Count-1, v.name,
			quotePlain(v.value)))
	case own.Count < 0 && job.Size >= 0 && job.Index >= job.Size:
		if v, ok := r.get("PAIINIT_INDEX"); ok {
			panic(r.fail(v, "", "%s=%d is outside 0..%d (%s)", v.name, job.Index, job.Size-1, r.sources["size"]))
		}
		r.warn("%s is number %d of %d containers (%s): the containers agree on its rank", r.sources["index"],
			job.Index+1, job.Size, r.sources["size"])
	}
}

// checkPeers refuses two containers with the same host and port. With host networking, one host has several ports.
func checkPeers(r *reader, job *Job) {
	seen := make(map[hostPort]Peer, len(job.Peers))
	for _, p := range job.Peers {
		if p.Host == "" || p.Port == 0 {
			continue
		}
		at := hostPort{strings.ToLower(p.Host), p.Port}
		if q, dup := seen[at]; dup {
			v := r.origin[peerKey{p.Role, p.Index}]
			panic(r.fail(v, "", "%s=%s: %s and %s both use %s:%d", v.name, quotePlain(v.value), q.Alias, p.Alias,
				p.Host, p.Port))
		}
		seen[at] = p
	}
}
