package main

import (
	"fmt"
	"os"
)

// Values of --people.
const (
	peopleJob   = "job"
	peopleLocal = "local"
)

// personBehind decides whether a process may use the other ranks.
func (a answers) personBehind(pid int) (string, error) {
	if a.c.server != nil { // otherwise no person can log in
		a.c.server.AwaitStarts()
	}
	name := a.c.people.Behind(os.DirFS("/proc"), pid)
	if name != "" && a.c.settings.people == peopleLocal {
		return "", fmt.Errorf("%s may run commands in this container only (--people local)", name)
	}
	return name, nil
}
