package main

import (
	"strings"

	"github.com/paiinit/paiinit/cmdline"
	"github.com/paiinit/paiinit/launch"
)

// completeUntil normalises --until, and replaces --exec leader by what it is: --exec all --until rank0.
func (s *commandSettings) completeUntil() error {
	given := s.until
	s.until = launch.ParseUntil(given)
	chosen := s.until != "" && s.until != launch.UntilRank0
	switch {
	case s.exec == execLeader && chosen:
		return cmdline.Errorf("--until (%s) is %q: with --exec leader the job ends with rank 0's command",
			cmdline.Twin("until"), given)
	case s.exec == execLeader:
		s.exec, s.until = execAll, launch.UntilRank0
	case s.exec != execAll && chosen:
		return cmdline.Errorf("--until (%s) is %q: it needs --exec all", cmdline.Twin("until"), given)
	}
	return nil
}

// hasLeader reports whether every rank runs its command, and the job ends with that of rank 0.
func (s *commandSettings) hasLeader() bool { return s.exec == execAll && s.until == launch.UntilRank0 }

// whoRuns returns the settings that must be equal on all ranks: --exec, and --until and --ready if they are given.
func (s *commandSettings) whoRuns() string {
	switch {
	case s.hasLeader() && s.ready != "":
		return execLeader + " --ready " + s.ready
	case s.hasLeader() && s.firstLine != "":
		return execLeader + " --first"
	case s.hasLeader():
		return execLeader
	case s.exec != execAll || s.until == "":
		return s.exec
	}
	return s.exec + " --until " + s.until
}

// checkUntil refuses roles in --until that no rank has. It accepts any role in a container that runs alone, such as
// TFJob's evaluator, because the setting may be for the whole job.
func (s *settings) checkUntil(roles []string) error {
	if s.exec != execAll || len(roles) < 2 {
		return nil
	}
	unknown, known := launch.UnknownRoles(s.until, roles)
	if len(unknown) == 0 {
		return nil
	}
	return cmdline.Errorf("--until (%s) names %s, a role that no rank has; the roles are %s",
		cmdline.Twin("until"), strings.Join(unknown, ","), strings.Join(known, ", "))
}
