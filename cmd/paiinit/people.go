package main

import (
	"fmt"
	"os"
)

// The values of --people.
const (
	peopleJob   = "job"
	peopleLocal = "local"
)

// personBehind names the person behind a process, and refuses the process if it may not use the other ranks.
func (a answers) personBehind(pid int) (string, error) {
	if a.c.server != nil { // without a server, no person can log in
		a.c.server.AwaitStarts()
	}
	name := a.c.people.Behind(os.DirFS("/proc"), pid)
	if name != "" && a.c.settings.people == peopleLocal {
		return "", fmt.Errorf("%s may run commands only in this container (--people local)", name)
	}
	return name, nil
}
