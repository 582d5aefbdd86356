// Package sweep removes what a test made in a Docker engine, also if the process of the test is killed.
package sweep

import (
	"crypto/rand"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// NewName returns a name that no other run of tests uses.
func NewName() string { return strings.ToLower(rand.Text()[:12]) }

// script removes all that has the name $1. It begins when its standard input ends.
const script = `cat
docker ps --all --quiet --filter "name=$1" | xargs -r docker rm --force --volumes
docker network ls --quiet --filter "name=$1" | xargs -r docker network rm
docker volume ls --quiet --filter "name=$1" | xargs -r docker volume rm
docker images --format '{{.Repository}}:{{.Tag}}' --filter "reference=*:$1" --filter "reference=*/*:$1" |
	xargs -r docker rmi --force`

// Later removes containers, networks and volumes with name in their names, and the tag name of all images, when this
// process ends or stop is called. Stop returns when all are removed.
func Later(name string) (stop func(), err error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = read.Close() }()
	cmd := exec.Command("sh", "-c", script, "sh", name)
	cmd.Stdin = read                                     // ends when no process has the other end: only this one does
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // who ends the test's process group does not end it
	if err := cmd.Start(); err != nil {
		_ = write.Close()
		return nil, err
	}
	return func() {
		_ = write.Close()
		_ = cmd.Wait() // xargs and rm complain about what is being removed already
	}, nil
}
