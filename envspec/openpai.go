package envspec

import (
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
	index      map[string]int // position in roles
	listVar    variable
}

const paiRuntimeEnv = "/usr/local/pai/runtime.d/runtime_env.sh"

func matchOpenPAI(r *reader) string {
	if v, ok := r.get("PAI_CURRENT_TASK_ROLE_NAME", "PAI_TASK_ROLE_LIST", "PAI_JOB_TASK_ROLE_LIST"); ok {
		return v.name
	}
	return ""
}

func readOpenPAI(r *reader, job *Job) error {
	pai := openPAI{
		reader:     r,
		kubernetes: r.has("FC_TASKROLE_NAME", "FC_TASK_INDEX", "FC_FRAMEWORK_ATTEMPT_INSTANCE_UID"),
	}
	if pai.kubernetes {
		pai.sourceRuntimeEnv()
	}
	if v, ok := r.get("PAI_JOB_NAME", "PAI_FRAMEWORK_NAME", "FRAMEWORK_NAME"); ok {
		job.ID = strings.ToValidUTF8(v.value, "?")
		r.note("job", v)
	}
	if v, ok := r.get("FC_FRAMEWORK_ATTEMPT_INSTANCE_UID", "FC_FRAMEWORK_ATTEMPT_ID", "APP_ID"); ok {
		job.Attempt = strings.ToValidUTF8(v.value, "?")
		r.note("attempt", v)
	}
	pai.secrets(job)
	pinned := r.has("PAIINIT_PEERS")
	if err := pai.readRoles(job); err != nil && !pinned {
		return err
	}
	if err := pai.readSelf(job, pinned); err != nil {
		return err
	}
	if pinned {
		return nil
	}
	if err := pai.readCounts(job); err != nil {
		return err
	}
	if _, err := pai.ownPorts(); err != nil {
		return err
	}
	job.ServerPort = !pai.tellsSSH() && !pai.has("PAIINIT_PORT")
	return pai.readPeers(job)
}

// sourceRuntimeEnv reads the lines "export NAME='value'" of the runtime's file, unless the environment has them.
func (pai *openPAI) sourceRuntimeEnv() {
	for name := range pai.vars {
		if strings.HasPrefix(name, "PAI_HOST_IP_") {
			return
		}
	}
	text, ok := pai.file(paiRuntimeEnv)
	if !ok {
		return
	}
	for line := range strings.Lines(text) {
		assignment, ok := strings.CutPrefix(clean(line), "export ")
		if !ok {
			continue
		}
		name, value, ok := strings.Cut(assignment, "=")
		if name = clean(name); !ok || name == "" {
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
	var paths []string
	for _, name := range pai.entries(tokens) {
		paths = append(paths, path.Join(tokens, name))
	}
	if v, ok := pai.get("PAI_JOB_NAME"); ok && !strings.Contains(v.value, "/") {
		paths = append(paths, path.Join("/root/.ssh", v.value))
	}
	paths = append(paths, "/usr/local/pai/ssh-secret/ssh-privatekey")
	for _, p := range paths {
		if pai.exists(p) {
			job.Secrets = append(job.Secrets, Secret{Kind: "file", Name: p})
		}
	}
}

// mangle returns a role as OpenPAI on Kubernetes writes it: convertName in src/rest-server/src/models/v2/utils/name.js.
func mangle(role string) string { return lettersAndDigits(role) }

// names returns the spellings of a role in variable names, the original first.
func (pai *openPAI) names(role string) []string {
	if m := mangle(role); pai.kubernetes && m != role {
		return []string{role, m}
	}
	return []string{role}
}

// of returns the variable prefix+role+suffix in any of the role's spellings.
func (pai *openPAI) of(prefix, role, suffix string) (variable, bool) {
	for _, name := range pai.names(role) {
		if v, ok := pai.get(prefix + name + suffix); ok {
			return v, true
		}
	}
	return variable{}, false
}

// mentioned says whether prefix+role+suffix is set, even if it is blank.
func (pai *openPAI) mentioned(prefix, role, suffix string) bool {
	for _, name := range pai.names(role) {
		if _, ok := pai.vars[prefix+name+suffix]; ok {
			return true
		}
	}
	return false
}

// readRoles reads the list of roles. Other variables list them alphabetically in some versions: their order is no rank.
func (pai *openPAI) readRoles(job *Job) error {
	v, ok := pai.get("PAI_TASK_ROLE_LIST", "PAI_JOB_TASK_ROLE_LIST")
	if !ok {
		return pai.missing("set PAIINIT_PEERS", "PAI_TASK_ROLE_LIST", "PAI_JOB_TASK_ROLE_LIST")
	}
	roles, err := pai.items(v, ",")
	if err != nil {
		return err
	}
	pai.listVar, pai.index = v, make(map[string]int, len(roles))
	mangled := make(map[string]string, len(roles))
	for i, role := range roles {
		if !isRoleName(role) {
			return pai.wrong(v, "", "%s is not a role name", quote(role))
		}
		if _, dup := pai.index[role]; dup {
			return pai.wrong(v, "", "role %q occurs twice", role)
		}
		if other, dup := mangled[mangle(role)]; dup && pai.kubernetes {
			return pai.wrong(v, "rename one", "roles %q and %q share the runtime name %q", other, role, mangle(role))
		}
		pai.index[role] = i
		mangled[mangle(role)] = role
	}
	pai.roles = roles
	return nil
}

// readSelf reads this container's role, index and GPUs. They are optional in a pinned job, which has PAIINIT_PEERS.
func (pai *openPAI) readSelf(job *Job, pinned bool) error {
	v, ok := pai.get("PAIINIT_ROLE", "PAI_CURRENT_TASK_ROLE_NAME", "PAI_TASK_ROLE_NAME", "FC_TASKROLE_NAME")
	switch {
	case ok:
		pai.note("role", v)
		job.Role = pai.asListed(v.value)
		if _, known := pai.index[job.Role]; !known && !pinned {
			return pai.fail(v, "", "role %s (%s) is not one of %s (%s)", quote(v.value), v.name, quoteAll(pai.roles),
				pai.listVar.name)
		}
	case len(pai.roles) == 1:
		job.Role = pai.roles[0]
		pai.note("role", pai.listVar)
	case !pinned:
		return pai.missing("set PAIINIT_ROLE", "PAI_CURRENT_TASK_ROLE_NAME", "FC_TASKROLE_NAME")
	}
	index, v, ok, err := pai.number(0, maxTasks, "PAIINIT_INDEX", "PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX",
		"PAI_TASK_INDEX", "PAI_TASK_ROLE_INDEX", "FC_TASK_INDEX")
	switch {
	case err != nil && !pinned:
		return err
	case ok && err == nil:
		job.Index = index
		pai.note("index", v)
	case !pinned:
		return pai.missing("set PAIINIT_INDEX", "PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX", "FC_TASK_INDEX")
	}
	pai.readGPUs(job.Role)
	return nil
}

// asListed returns a role as PAI_TASK_ROLE_LIST spells it: early 1.x tells a container the runtime's spelling.
func (pai *openPAI) asListed(role string) string {
	if _, known := pai.index[role]; !known && pai.kubernetes {
		for _, r := range pai.roles {
			if mangle(r) == role {
				return r
			}
		}
	}
	return role
}

// readGPUs reads the GPU counts of all roles (1.x), or of this container's role.
func (pai *openPAI) readGPUs(own string) {
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
	if v, ok := pai.get("PAI_CURRENT_TASK_ROLE_GPU_COUNT"); ok {
		resource(own, v)
	} else if v, ok := pai.get("PAI_RESOURCE"); ok {
		resource(own, v)
	}
}

// readCounts finds how many tasks each role has: from its variable, from its list of hosts or, for one last role, from
// the job's total.
func (pai *openPAI) readCounts(job *Job) error {
	total, totalVar, hasTotal, err := pai.number(1, maxTasks, "PAI_TASKS_NUM", "PAI_JOB_TASK_COUNT")
	if err != nil {
		return err
	}
	var open []int
	sum := 0
	for i, role := range pai.roles {
		count := -1
		v, ok := pai.of("PAI_TASK_ROLE_TASK_COUNT_", role, "")
		if !ok && role == job.Role {
			v, ok = pai.get("PAI_CURRENT_TASK_ROLE_TASK_COUNT", "PAI_TASK_ROLE_NUM")
		}
		if ok {
			if count, err = pai.parseNumber(v, 0, maxTasks); err != nil {
				return err
			}
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
		list, v, err := pai.hostList(role.Name)
		if err != nil {
			return err
		}
		if v.name == "" && !pai.mentioned("PAI_TASK_ROLE_", role.Name, "_HOST_LIST") {
			return pai.noAddress(role.Name)
		}
		role.Count = len(list)
		pai.counts[role.Name] = v
		sum += role.Count
	}
	switch {
	case hasTotal && sum != total:
		return pai.fail(totalVar, "", "%s=%d but roles add up to %d", totalVar.name, total, sum)
	case sum > maxTasks:
		return pai.wrong(pai.listVar, "", "the roles have %d tasks, more than %d", sum, maxTasks)
	case hasTotal:
		pai.note("size", totalVar)
	default:
		pai.sources["size"] = pai.counts[job.Role].source()
	}
	return nil
}

// hostList reads PAI_TASK_ROLE_<role>_HOST_LIST. The variable's name is empty if it is not set.
func (pai *openPAI) hostList(role string) ([]hostPort, variable, error) {
	v, ok := pai.of("PAI_TASK_ROLE_", role, "_HOST_LIST")
	if !ok {
		return nil, variable{}, nil
	}
	items, err := pai.items(v, ",")
	if err != nil {
		return nil, v, err
	}
	list := make([]hostPort, len(items))
	for i, item := range items {
		hp, problem := parseHostPort(item)
		if problem == "" && hp.port == 0 {
			problem = quote(item) + " has no port"
		}
		if problem != "" {
			return nil, v, pai.wrong(v, "", "%s", problem)
		}
		list[i] = hp
	}
	return list, v, nil
}

// noAddress returns the error for a role whose tasks have no address in any variable.
func (pai *openPAI) noAddress(role string) error {
	name := "PAI_TASK_ROLE_" + role + "_HOST_LIST"
	if pai.kubernetes {
		name = "PAI_HOST_IP_" + mangle(role) + "_0"
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
func (pai *openPAI) readPeers(job *Job) error {
	for _, role := range job.Roles {
		list, listVar, err := pai.hostList(role.Name)
		if err != nil {
			return err
		}
		if len(list) > role.Count {
			return pai.fail(listVar, "", "%s=%s has %d of %d hosts (%s)", listVar.name, quote(listVar.value), len(list),
				role.Count, pai.counts[role.Name].name)
		}
		told := listVar.name != "" || pai.mentioned("PAI_TASK_ROLE_", role.Name, "_HOST_LIST")
		found := 0
		for i := range role.Count {
			p, seen, err := pai.peer(role, i, list, listVar)
			if err != nil {
				return err
			}
			if role.Name == job.Role && i == job.Index {
				if err := pai.completeSelf(&p); err != nil {
					return err
				}
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
			return pai.noAddress(role.Name)
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
	return nil
}

// peer finds one task. seen says whether any variable mentions it.
func (pai *openPAI) peer(role Role, index int, list []hostPort, listVar variable) (p Peer, seen bool, err error) {
	p = Peer{Role: role.Name, Index: index, Names: []string{}}
	for _, name := range pai.names(role.Name)[1:] {
		p.Names = append(p.Names, alias(name, index))
	}
	key, suffix := peerKey{role.Name, index}, "_"+strconv.Itoa(index)
	if len(list) == role.Count {
		p.Host, p.Port = list[index].host, list[index].port
		pai.origin[key] = listVar
	}
	if v, ok := pai.of("PAI_HOST_IP_", role.Name, suffix); ok {
		if problem := checkHost(v.value); problem != "" {
			return p, true, pai.wrong(v, "", "%s", problem)
		}
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
		seen = true
		if p.Port, err = pai.firstPort(v); err != nil {
			return p, true, err
		}
		pai.origin[key] = v
	}
	return p, seen, nil
}

// completeSelf fills in what OpenPAI tells a container only about itself.
func (pai *openPAI) completeSelf(p *Peer) error {
	key := peerKey{p.Role, p.Index}
	if v, ok := pai.get("PAI_CONTAINER_HOST_IP", "PAI_CURRENT_CONTAINER_IP"); ok && p.Host == "" {
		if problem := checkHost(v.value); problem != "" {
			return pai.wrong(v, "", "%s", problem)
		}
		p.Host = v.value
		pai.origin[key] = v
	}
	if p.Port != 0 {
		return nil
	}
	label := "http"
	if pai.tellsSSH() {
		label = "ssh"
	}
	ports, err := pai.ownPorts()
	if err != nil {
		return err
	}
	if own, ok := ports[label]; ok {
		p.Port = own.port
		pai.origin[key] = own.from
	}
	return nil
}

// tellsSSH says whether this generation tells every task the ssh ports of all tasks.
func (pai *openPAI) tellsSSH() bool {
	if pai.kubernetes {
		return true
	}
	for name := range pai.vars {
		if strings.HasPrefix(name, "PAI_PORT_LIST_") {
			return true
		}
	}
	return false
}

type labelPort struct {
	port int
	from variable
}

// ownPorts reads the first port of each label from PAI_CONTAINER_HOST_PORT_LIST, "label:port[,port...];...", and from
// the variables that repeat a part of it.
func (pai *openPAI) ownPorts() (map[string]labelPort, error) {
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
		port, err := pai.firstPort(v)
		if err != nil {
			return nil, err
		}
		ports[part.label] = labelPort{port, v}
	}
	v, ok := pai.get("PAI_CONTAINER_HOST_PORT_LIST")
	if !ok {
		return ports, nil
	}
	for item := range strings.SplitSeq(strings.TrimRight(v.value, "; "), ";") {
		label, list, ok := strings.Cut(item, ":")
		if label = clean(label); !ok || label == "" {
			return nil, pai.wrong(v, "", "%s is not label:port", quote(item))
		}
		for i, text := range strings.Split(list, ",") {
			port, problem := parsePort(clean(text))
			if problem != "" {
				// "port 70000 of "ssh" is not in ..."
				problem = strings.Replace(problem, " is not", " of "+quote(label)+" is not", 1)
				return nil, pai.wrong(v, "", "%s", problem)
			}
			if _, known := ports[label]; !known && i == 0 {
				ports[label] = labelPort{port, v}
			}
		}
	}
	return ports, nil
}

// firstPort returns the first port of a list.
func (pai *openPAI) firstPort(v variable) (int, error) {
	items, err := pai.items(v, ",")
	if err != nil {
		return 0, err
	}
	first := 0
	for i, item := range items {
		port, problem := parsePort(item)
		if problem != "" {
			return 0, pai.wrong(v, "", "%s", problem)
		}
		if i == 0 {
			first = port
		}
	}
	return first, nil
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
