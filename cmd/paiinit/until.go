package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/rendezvous"
)

// untilRank0 is the value of --until for a job that ends with rank 0's command.
const untilRank0 = "rank0"

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
	if s.exec != execAll || s.until == "" || s.until == untilRank0 || len(roles) < 2 {
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

// neededRanks are the ranks whose commands must end with 0 before the others are told to end. A parameter server or an
// evaluator never ends by itself; where every rank is one, all are needed.
func (s *settings) neededRanks(members []rendezvous.Member) []rendezvous.Member {
	if s.until == untilRank0 {
		return members[:1]
	}
	roles := strings.Split(s.until, ",")
	var needed []rendezvous.Member
	for _, m := range members {
		is := slices.Contains(roles, strings.ToLower(m.Role))
		if s.until == "" {
			is = !launch.Serves(m.Role)
		}
		if is {
			needed = append(needed, m)
		}
	}
	if len(needed) == 0 {
		return members
	}
	return needed
}

func rolesOf(members []rendezvous.Member) []string {
	var roles []string
	for _, m := range members {
		roles = append(roles, m.Role)
	}
	return roles
}
