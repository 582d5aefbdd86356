package main

import (
	"strings"

	"github.com/paiinit/paiinit/cmdline"
	"github.com/paiinit/paiinit/launch"
)

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
