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
func (c *container) personBehind(pid int) (string, error) {
	if c.server != nil { // otherwise no person can log in
		c.server.AwaitStarts()
	}
	name := c.people.Behind(os.DirFS("/proc"), pid)
	if name != "" && c.settings.people == peopleLocal {
		return "", fmt.Errorf("%s may run commands in this container only (--people local)", name)
	}
	return name, nil
}
