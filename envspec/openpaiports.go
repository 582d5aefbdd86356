package envspec

import (
	"slices"
	"strconv"
	"strings"
)

// WithServerPorts returns environ with port(role, index) in place of the "http" ports of all tasks, where paiinit
// listens on them, see [Job.ServerPort]: a server that the command starts cannot bind them. What port returns 0 for
// stays.
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

// withRolePorts replaces the ports of a role's list of hosts. In a list that is shorter than the role, positions are no
// indexes.
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
