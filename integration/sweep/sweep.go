// Package sweep removes the objects that a test created in a Docker engine, even if the test's process is killed.
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

// script removes all objects with the name $1, after EOF on its standard input.
const script = `cat
docker ps --all --quiet --filter "name=$1" | xargs -r docker rm --force --volumes
docker network ls --quiet --filter "name=$1" | xargs -r docker network rm
docker volume ls --quiet --filter "name=$1" | xargs -r docker volume rm
docker images --format '{{.Repository}}:{{.Tag}}' --filter "reference=*:$1" --filter "reference=*/*:$1" |
	xargs -r docker rmi --force`

// Later removes containers, networks and volumes with name in their names, and the tag name of all images, when this
// process ends or the caller calls stop. Stop returns after it has removed them.
func Later(name string) (stop func(), err error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = read.Close() }()
	cmd := exec.Command("sh", "-c", script, "sh", name)
	cmd.Stdin = read                                     // EOF when this process, the only writer, ends
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // survive a signal to the test's process group
	if err := cmd.Start(); err != nil {
		_ = write.Close()
		return nil, err
	}
	return func() {
		_ = write.Close()
		_ = cmd.Wait() // fails if the engine is already removing one of the objects
	}, nil
}
