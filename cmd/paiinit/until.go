package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/rendezvous"
)

// untilOf normalises the value of --until: ranks that were told the same in other words agree.
func untilOf(value string) string {
	roles := strings.FieldsFunc(strings.ToLower(value), func(r rune) bool { return r == ',' || r == ' ' })
	slices.Sort(roles)
	return strings.Join(slices.Compact(roles), ",")
}

// whoRuns is what all ranks must have been told alike: --exec, and --until where it was given.
func (s *settings) whoRuns() string {
	if s.exec != execAll || s.until == "" {
		return s.exec
	}
	return s.exec + " --until " + s.until
}

// checkUntil refuses roles in --until that no rank has. A container on its own, such as TFJob's evaluator, may have
// been given those of a whole job.
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
