package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/rendezvous"
)

// untilOf normalises the value of --until, so that ranks with equivalent values agree.
func untilOf(value string) string {
	roles := strings.FieldsFunc(strings.ToLower(value), func(r rune) bool { return r == ',' || r == ' ' })
	slices.Sort(roles)
	return strings.Join(slices.Compact(roles), ",")
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
	var known []string
	for _, role := range roles {
		known = append(known, strings.ToLower(role))
	}
	slices.Sort(known)
	known = slices.Compact(known)
	var unknown []string
	for role := range strings.SplitSeq(s.until, ",") {
		if !slices.Contains(known, role) {
			unknown = append(unknown, role)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	return &usageError{fmt.Errorf("--until (%s) names %s, a role that no rank has; the roles are %s",
		twin("until"), strings.Join(unknown, ","), strings.Join(known, ", "))}
}

func rolesOf(members []rendezvous.Member) []string {
	var roles []string
	for _, m := range members {
		roles = append(roles, m.Role)
	}
	return roles
}
