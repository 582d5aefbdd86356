package launch

import (
	"slices"
	"strings"
)

// ParseUntil normalises the value of --until, so that ranks with equivalent values agree: each role once, in lower
// case, sorted.
func ParseUntil(value string) string {
	separates := func(r rune) bool { return r == ',' || r == ' ' }
	return strings.Join(sortedRoles(strings.FieldsFunc(value, separates)), ",")
}

// UnknownRoles returns the roles that until, a value of ParseUntil, names and no rank has. It also returns the roles of
// the ranks, each once.
func UnknownRoles(until string, roles []string) (unknown, known []string) {
	known = sortedRoles(roles)
	if until == "" || until == UntilRank0 {
		return nil, known
	}
	return slices.DeleteFunc(strings.Split(until, ","), func(role string) bool {
		return slices.Contains(known, role)
	}), known
}

// sortedRoles returns each role once, in lower case.
func sortedRoles(roles []string) []string {
	lower := make([]string, len(roles))
	for i, role := range roles {
		lower[i] = strings.ToLower(role)
	}
	slices.Sort(lower)
	return slices.Compact(lower)
}
