package envspec

import (
	"cmp"
	"path"
	"slices"
	"strconv"
	"strings"
)

// OpenPAI (github.com/microsoft/pai) has had three generations of one set of variables:
//
//   - classic, up to 0.10: only PAI_TASK_ROLE_<role>_HOST_LIST tells about other tasks, with their "http" ports.
//   - 0.11 to 1.0 on YARN: every task's address and ports by label, PAI_HOST_IP_<role>_<index> and
//     PAI_PORT_LIST_<role>_<index>_<label>.
//   - 1.x on Kubernetes: the same, but these names contain the role as Kubernetes allows it (lower case, letters and
//     digits), all others as written. The pod's runtime sources them from /usr/local/pai/runtime.d/runtime_env.sh: a
//     command that runs without it does not have them.
//
// Names are built from role, index and label. They cannot be split again, because roles may contain "_".
// Sources: src/rest-server/src/templates/yarnContainerScript.mustache, src/rest-server/src/models/v2/job/k8s.js, and
// init.d/framework_parser.py of github.com/microsoft/openpai-runtime.
type openPAI struct {
	*reader
	kubernetes bool
	roles      []string
	listVar    variable
}

const paiRuntimeEnv = "/usr/local/pai/runtime.d/runtime_env.sh"

func matchOpenPAI(r *reader) string {
	return r.sees("PAI_CURRENT_TASK_ROLE_NAME", "PAI_TASK_ROLE_LIST", "PAI_JOB_TASK_ROLE_LIST")
}

func readOpenPAI(r *reader, job *Job) {
	pai := openPAI{
		reader:     r,
		kubernetes: r.has("FC_TASKROLE_NAME", "FC_TASK_INDEX", "FC_FRAMEWORK_ATTEMPT_INSTANCE_UID"),
	}
	if pai.kubernetes {
		pai.sourceRuntimeEnv()
	}
	r.readID(job, "PAI_JOB_NAME", "PAI_FRAMEWORK_NAME", "FRAMEWORK_NAME")
	if v, ok := r.get("FC_FRAMEWORK_ATTEMPT_INSTANCE_UID", "FC_FRAMEWORK_ATTEMPT_ID", "APP_ID"); ok {
		job.Attempt = strings.ToValidUTF8(v.value, "?")
		r.note("attempt", v)
	}
	pai.secrets(job)
	pinned := r.has("PAIINIT_PEERS") // the list replaces what cannot be read
	for _, step := range []func(*Job){pai.readRoles, pai.readRole, pai.readIndex, pai.readGPUs} {
		if err := catch(func() { step(job) }); err != nil && !pinned {
			panic(err)
		}
	}
	if pinned {
		return
	}
	pai.readCounts(job)
	pai.ownPorts() // refuses bad ones, even if no port is missing
	job.ServerPort = !pai.tellsSSH() && !pai.has("PAIINIT_PORT")
	pai.readPeers(job)
}

// sourceRuntimeEnv reads the lines "export NAME='value'" of the runtime's file, unless the environment has them.
func (pai *openPAI) sourceRuntimeEnv() {
	if pai.hasPrefix("PAI_HOST_IP_") {
		return
	}
	text, _ := pai.file(paiRuntimeEnv)
	for line := range strings.Lines(text) {
		assignment, isExport := strings.CutPrefix(clean(line), "export ")
		name, value, ok := strings.Cut(assignment, "=")
		if name = clean(name); !isExport || !ok || name == "" {
			continue
		}
		if n := len(value); n >= 2 && (value[0] == '\'' || value[0] == '"') && value[n-1] == value[0] {
			value = value[1 : n-1]
		}
		if _, set := pai.vars[name]; !set {
			pai.vars[name], pai.files[name] = value, paiRuntimeEnv
		}
	}
}

// secrets lists the secrets that OpenPAI may put into every container of the job: a token (1.8), the classic job key,
// and the ssh plugin's key.
func (pai *openPAI) secrets(job *Job) {
	const tokens = "/usr/local/pai/token-secrets"
	for _, name := range pai.entries(tokens) {
		pai.addSecret(job, path.Join(tokens, name))
	}
	if v, ok := pai.get("PAI_JOB_NAME"); ok && !strings.Contains(v.value, "/") {
		pai.addSecret(job, path.Join("/root/.ssh", v.value))
	}
	pai.addSecret(job, "/usr/local/pai/ssh-secret/ssh-privatekey")
}

// names returns prefix+role+suffix in all spellings of the role, the original first. OpenPAI on Kubernetes writes only
// the role's letters and digits: convertName in src/rest-server/src/models/v2/utils/name.js.
func (pai *openPAI) names(prefix, role, suffix string) []string {
	names := []string{prefix + role + suffix}
	if m := lettersAndDigits(role); pai.kubernetes && m != role {
		names = append(names, prefix+m+suffix)
	}
	return names
}

// of returns the variable prefix+role+suffix in any of the role's spellings.
func (pai *openPAI) of(prefix, role, suffix string) (variable, bool) {
	return pai.get(pai.names(prefix, role, suffix)...)
}

// mentionsHosts says whether a role's list of hosts is set, even if it is blank.
func (pai *openPAI) mentionsHosts(role string) bool {
	return slices.ContainsFunc(pai.names("PAI_TASK_ROLE_", role, "_HOST_LIST"), func(name string) bool {
		_, ok := pai.vars[name]
		return ok
	})
}

// hasPrefix says whether the name of any variable begins with prefix.
func (pai *openPAI) hasPrefix(prefix string) bool {
	for name := range pai.vars {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// readRoles reads the list of roles. Other variables list them alphabetically in some versions: their order is no rank.
func (pai *openPAI) readRoles(*Job) {
	v := pai.need("set PAIINIT_PEERS", "PAI_TASK_ROLE_LIST", "PAI_JOB_TASK_ROLE_LIST")
	roles := pai.items(v, ",")
	byName := make(map[string]string, len(roles))
	for _, role := range roles {
		name := role
		if pai.kubernetes {
			name = lettersAndDigits(role)
		}
		other, dup := byName[name]
		switch {
		case !isRoleName(role):
			panic(pai.wrong(v, "", "%s is not a role name", quote(role)))
		case dup && other == role:
			panic(pai.wrong(v, "", "role %q occurs twice", role))
		case dup:
			panic(pai.wrong(v, "rename one", "roles %q and %q share the runtime name %q", other, role, name))
		}
		byName[name] = role
	}
	pai.roles, pai.listVar = roles, v
}

func (pai *openPAI) readRole(job *Job) {
	v, ok := pai.get("PAIINIT_ROLE", "PAI_CURRENT_TASK_ROLE_NAME", "PAI_TASK_ROLE_NAME", "FC_TASKROLE_NAME")
	switch {
	case ok:
		pai.note("role", v)
		job.Role = pai.asListed(v.value)
		if !slices.Contains(pai.roles, job.Role) {
			panic(pai.fail(v, "", "role %s (%s) is not one of %s (%s)", quote(v.value), v.name, quoteAll(pai.roles),
				pai.listVar.name))
		}
	case len(pai.roles) == 1:
		job.Role = pai.roles[0]
		pai.note("role", pai.listVar)
	default:
		panic(pai.missing("set PAIINIT_ROLE", "PAI_CURRENT_TASK_ROLE_NAME", "FC_TASKROLE_NAME"))
	}
}

func (pai *openPAI) readIndex(job *Job) {
	index, v, ok := pai.number(0, maxTasks, "PAIINIT_INDEX", "PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX",
		"PAI_TASK_INDEX", "PAI_TASK_ROLE_INDEX", "FC_TASK_INDEX")
	if !ok {
		panic(pai.missing("set PAIINIT_INDEX", "PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX", "FC_TASK_INDEX"))
	}
	job.Index = index
	pai.note("index", v)
}

// asListed returns a role as PAI_TASK_ROLE_LIST spells it: early 1.x tells a container the runtime's spelling.
func (pai *openPAI) asListed(role string) string {
	if slices.Contains(pai.roles, role) || !pai.kubernetes {
		return role
	}
	for _, r := range pai.roles {
		if lettersAndDigits(r) == role {
			return r
		}
	}
	return role
}

// readGPUs reads the GPU counts of all roles (1.x), or of this container's role.
func (pai *openPAI) readGPUs(job *Job) {
	own := job.Role
	resource := func(role string, v variable) {
		// gpu,cpu,memory in MB,shared memory in MB
		gpus, _, _ := strings.Cut(v.value, ",")
		if n, ok := pai.hint(v, gpus); ok {
			pai.gpus[role] = n
			if role == own {
				pai.ownGPUs = n
				pai.note("gpus", v)
			}
		}
	}
	for _, role := range pai.roles {
		if v, ok := pai.of("PAI_RESOURCE_", role, ""); ok {
			resource(role, v)
		}
	}
	if _, known := pai.gpus[own]; known || own == "" {
		return
	}
	if v, ok := pai.get("PAI_CURRENT_TASK_ROLE_GPU_COUNT", "PAI_RESOURCE"); ok {
		resource(own, v)
	}
}

// readCounts finds how many tasks each role has: from its variable, from its list of hosts or, for one last role, from
// the job's total.
func (pai *openPAI) readCounts(job *Job) {
	total, totalVar, hasTotal := pai.number(1, maxTasks, "PAI_TASKS_NUM", "PAI_JOB_TASK_COUNT")
	var open []int
	sum := 0
	for i, role := range pai.roles {
		count := -1
		v, ok := pai.of("PAI_TASK_ROLE_TASK_COUNT_", role, "")
		if !ok && role == job.Role {
			v, ok = pai.get("PAI_CURRENT_TASK_ROLE_TASK_COUNT", "PAI_TASK_ROLE_NUM")
		}
		if ok {
			count = pai.parseNumber(v, 0, maxTasks)
			pai.counts[role] = v
			sum += count
		} else {
			open = append(open, i)
		}
		job.Roles = append(job.Roles, Role{Name: role, Count: count})
	}
	if len(open) == 1 && hasTotal && total >= sum {
		job.Roles[open[0]].Count = total - sum
		pai.counts[job.Roles[open[0]].Name] = totalVar
		sum, open = total, nil
	}
	for _, i := range open {
		role := &job.Roles[i]
		list, v := pai.hostList(role.Name)
		if v.name == "" && !pai.mentionsHosts(role.Name) {
			panic(pai.noAddress(role.Name))
		}
		role.Count = len(list)
		pai.counts[role.Name] = v
		sum += role.Count
	}
	switch {
	case hasTotal && sum != total:
		panic(pai.fail(totalVar, "", "%s=%d but roles add up to %d", totalVar.name, total, sum))
	case sum > maxTasks:
		panic(pai.wrong(pai.listVar, "", "the roles have %d tasks, more than %d", sum, maxTasks))
	case hasTotal:
		pai.note("size", totalVar)
	default:
		pai.sources["size"] = pai.counts[job.Role].source()
	}
}

// hostList reads PAI_TASK_ROLE_<role>_HOST_LIST. The variable's name is empty if it is not set.
func (pai *openPAI) hostList(role string) ([]hostPort, variable) {
	v, ok := pai.of("PAI_TASK_ROLE_", role, "_HOST_LIST")
	if !ok {
		return nil, variable{}
	}
	items := pai.items(v, ",")
	list := make([]hostPort, len(items))
	for i, item := range items {
		list[i] = pai.place(v, item)
		if list[i].port == 0 {
			panic(pai.wrong(v, "", "%s has no port", quote(item)))
		}
	}
	return list, v
}

// noAddress returns the error for a role whose tasks have no address in any variable.
func (pai *openPAI) noAddress(role string) *VarError {
	name := "PAI_TASK_ROLE_" + role + "_HOST_LIST"
	if pai.kubernetes {
		name = "PAI_HOST_IP_" + lettersAndDigits(role) + "_0"
	}
	advice := "set PAIINIT_PEERS"
	switch {
	case strings.ContainsAny(role, ".~"):
		odd := "."
		if !strings.Contains(role, odd) {
			odd = "~"
		}
		advice = `names with "` + odd + `" are dropped by dash/busybox sh: start paiinit with bash or exec form`
	case pai.kubernetes:
		advice = "source " + paiRuntimeEnv + " first"
	}
	return pai.fail(variable{name: name}, advice, "%s is not set: no address variable for role %q", name, role)
}

// readPeers finds every task. All tasks know the port: ssh if this generation tells it, else http.
func (pai *openPAI) readPeers(job *Job) {
	for _, role := range job.Roles {
		list, listVar := pai.hostList(role.Name)
		if len(list) > role.Count {
			panic(pai.fail(listVar, "", "%s=%s has %d of %d hosts (%s)", listVar.name, quote(listVar.value), len(list),
				role.Count, pai.counts[role.Name].name))
		}
		told := listVar.name != "" || pai.mentionsHosts(role.Name)
		found := 0
		for i := range role.Count {
			p, seen := pai.peer(role, i, list, listVar)
			if role.Name == job.Role && i == job.Index {
				pai.completeSelf(&p)
			} else {
				told = told || seen
			}
			if p.Host != "" {
				found++
			}
			job.Peers = append(job.Peers, p)
		}
		others := role.Count
		if role.Name == job.Role {
			others--
		}
		if !told && others > 0 {
			panic(pai.noAddress(role.Name))
		}
		if found < role.Count {
			name, has := listVar.name, len(list)
			if name == "" {
				name, has = "PAI_TASK_ROLE_"+role.Name+"_HOST_LIST", found
			}
			pai.warn("%s has %d of %d hosts; gang allocation off? waiting for gossip", name, has, role.Count)
			if !pai.tellsSSH() { // positions in a short list are not indexes, but its addresses are valid
				for _, hp := range list {
					job.Seeds = append(job.Seeds, Seed{Host: hp.host, Port: hp.port})
					pai.note("seeds", listVar)
				}
			}
		}
	}
}

// peer finds one task. seen says whether any variable mentions it.
func (pai *openPAI) peer(role Role, index int, list []hostPort, listVar variable) (p Peer, seen bool) {
	p = Peer{Role: role.Name, Index: index, Names: pai.names("", role.Name, "-"+strconv.Itoa(index))[1:]}
	key, suffix := peerKey{role.Name, index}, "_"+strconv.Itoa(index)
	if len(list) == role.Count {
		p.Host, p.Port = list[index].host, list[index].port
		pai.origin[key] = listVar
	}
	if v, ok := pai.of("PAI_HOST_IP_", role.Name, suffix); ok {
		pai.check(v, checkHost(v.value))
		p.Host, seen = v.value, true
		pai.origin[key] = v
	}
	// The source of the peers is the first variable that tells about one.
	if v, ok := pai.origin[key]; ok && pai.sources["peers"] == "" {
		pai.note("peers", v)
	}
	v, ok := pai.of("PAI_PORT_LIST_", role.Name, suffix+"_ssh")
	if !ok {
		v, ok = pai.of("PAI_", role.Name, suffix+"_ssh_PORT")
	}
	if ok {
		p.Port, seen = pai.firstPort(v), true
		pai.origin[key] = v
	}
	return p, seen
}

// completeSelf fills in what OpenPAI tells a container only about itself.
func (pai *openPAI) completeSelf(p *Peer) {
	key := peerKey{p.Role, p.Index}
	if v, ok := pai.get("PAI_CONTAINER_HOST_IP", "PAI_CURRENT_CONTAINER_IP"); ok && p.Host == "" {
		pai.check(v, checkHost(v.value))
		p.Host = v.value
		pai.origin[key] = v
	}
	if p.Port != 0 {
		return
	}
	label := "http"
	if pai.tellsSSH() {
		label = "ssh"
	}
	if own, ok := pai.ownPorts()[label]; ok {
		p.Port = own.port
		pai.origin[key] = own.from
	}
}

// tellsSSH says whether this generation tells every task the ssh ports of all tasks.
func (pai *openPAI) tellsSSH() bool {
	return pai.kubernetes || pai.hasPrefix("PAI_PORT_LIST_")
}

type labelPort struct {
	port int
	from variable
}

// ownPorts reads the first port of each label from PAI_CONTAINER_HOST_PORT_LIST, "label:port[,port...];...", and from
// the variables that repeat a part of it.
func (pai *openPAI) ownPorts() map[string]labelPort {
	ports := make(map[string]labelPort)
	for _, part := range []struct{ label, name string }{
		{"ssh", "PAI_CONTAINER_HOST_ssh_PORT_LIST"}, {"ssh", "PAI_CONTAINER_SSH_PORT"},
		{"http", "PAI_CONTAINER_HOST_http_PORT_LIST"}, {"http", "PAI_CONTAINER_HOST_PORT"},
		{"http", "PAI_CURRENT_CONTAINER_PORT"},
	} {
		v, ok := pai.get(part.name)
		if _, known := ports[part.label]; !ok || known {
			continue
		}
		ports[part.label] = labelPort{pai.firstPort(v), v}
	}
	v, ok := pai.get("PAI_CONTAINER_HOST_PORT_LIST")
	if !ok {
		return ports
	}
	for item := range strings.SplitSeq(strings.TrimRight(v.value, "; "), ";") {
		label, list, ok := strings.Cut(item, ":")
		if label = clean(label); !ok || label == "" {
			panic(pai.wrong(v, "", "%s is not label:port", quote(item)))
		}
		for i, text := range strings.Split(list, ",") {
			port, problem := parsePort(clean(text))
			// "port 70000 of "ssh" is not in ..."
			pai.check(v, strings.Replace(problem, " is not", " of "+quote(label)+" is not", 1))
			if _, known := ports[label]; !known && i == 0 {
				ports[label] = labelPort{port, v}
			}
		}
	}
	return ports
}

// firstPort returns the first port of a list.
func (pai *openPAI) firstPort(v variable) int {
	first := 0
	for _, item := range pai.items(v, ",") {
		port, problem := parsePort(item)
		pai.check(v, problem)
		first = cmp.Or(first, port)
	}
	return first
}

// WithServerPorts returns environ with port(role, index) in place of the "http" ports of all tasks. paiinit listens on
// these, see [Job.ServerPort], so that a server of the command cannot bind them. A port for which port returns 0 stays.
func (j *Job) WithServerPorts(environ []string, port func(role string, index int) int) []string {
	out := slices.Clone(environ)
	own := port(j.Role, j.Index)
	for i, entry := range out {
		name, value, _ := strings.Cut(entry, "=")
		switch name {
		case "PAI_CONTAINER_HOST_PORT", "PAI_CURRENT_CONTAINER_PORT", "PAI_CONTAINER_HOST_http_PORT_LIST":
			value = withFirstPort(value, own)
		case "PAI_CONTAINER_HOST_PORT_LIST":
			labels := strings.Split(value, ";")
			for k, item := range labels {
				if label, list, ok := strings.Cut(item, ":"); ok && clean(label) == "http" {
					labels[k] = label + ":" + withFirstPort(list, own)
				}
			}
			value = strings.Join(labels, ";")
		default:
			role, isRole := strings.CutPrefix(name, "PAI_TASK_ROLE_")
			role, isList := strings.CutSuffix(role, "_HOST_LIST")
			if !isRole || !isList {
				continue
			}
			value = j.withRolePorts(role, value, port)
		}
		out[i] = name + "=" + value
	}
	return out
}

// withRolePorts replaces the ports in a role's list of hosts, unless it is shorter than the role: then positions are
// not indexes.
func (j *Job) withRolePorts(role, list string, port func(role string, index int) int) string {
	items := strings.Split(strings.TrimRight(list, ", "), ",")
	if !slices.ContainsFunc(j.Roles, func(r Role) bool { return r.Name == role && r.Count == len(items) }) {
		return list
	}
	for i, item := range items {
		if at := strings.LastIndexByte(item, ':'); at >= 0 {
			items[i] = item[:at+1] + withFirstPort(item[at+1:], port(role, i))
		}
	}
	return strings.Join(items, ",")
}

// withFirstPort replaces the first port of a list.
func withFirstPort(list string, port int) string {
	if port == 0 || list == "" {
		return list
	}
	_, rest, several := strings.Cut(list, ",")
	if several {
		rest = "," + rest
	}
	return strconv.Itoa(port) + rest
}
