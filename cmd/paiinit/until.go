package main

import (
	"slices"
	"strings"

	"github.com/paiinit/paiinit/cmdline"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/rendezvous"
)

// untilOf normalises the value of --until, so that ranks with equivalent values agree.
func untilOf(value string) string {
	separates := func(r rune) bool { return r == ',' || r == ' ' }
	return strings.Join(sortedRoles(strings.FieldsFunc(value, separates)), ",")
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

// whoRuns returns the settings that must be equal on all ranks: --exec, and --until if it is given.
func (s *settings) whoRuns() string {
	if s.exec != execAll || s.until == "" {
		return s.exec
	}
	return s.exec + " --until " + s.until
}

// checkUntil refuses roles in --until that no rank has. It accepts any role in a container that runs alone, such as
// TFJob's evaluator, because the setting may be for the whole job.
func (s *settings) checkUntil(roles []string) error {
	if s.exec != execAll || s.until == "" || s.until == launch.UntilRank0 || len(roles) < 2 {
		return nil
	}
	known := sortedRoles(roles)
	unknown := slices.DeleteFunc(strings.Split(s.until, ","), func(role string) bool {
		return slices.Contains(known, role)
	})
	if len(unknown) == 0 {
		return nil
	}
	return cmdline.Errorf("--until (%s) names %s, a role that no rank has; the roles are %s",
		cmdline.Twin("until"), strings.Join(unknown, ","), strings.Join(known, ", "))
}

func rolesOf(members []rendezvous.Member) []string {
	var roles []string
	for _, m := range members {
		roles = append(roles, m.Role)
	}
	return roles
}
