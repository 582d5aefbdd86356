package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"github.com/paiinit/paiinit/hostfile"
	"github.com/paiinit/paiinit/launch"
)

const (
	socketName   = "agent.sock"
	questionName = "status.sock"
)

// A Unix socket's path is at most this long (unix(7), sun_path).
const maxSocketPath = 107

// state is the directory for what launchers and tools read: the host lists, the sockets of the agent and of the commands that
// ask, and a link that makes this program the container's ssh.
type state struct {
	dir       string
	self      string // path of this program
	agent     *net.UnixListener
	questions *net.UnixListener
}

// stateDirs are the places to try, best first.
func stateDirs() []string {
	return []string{"/run/paiinit", "/dev/shm/paiinit-" + strconv.Itoa(os.Geteuid()), filepath.Join(os.TempDir(), "paiinit-"+strconv.Itoa(os.Geteuid()))}
}

func openState(dir string, environ []string) (*state, error) {
	self, err := os.Executable()
	if err != nil { // without /proc
		cwd, errDir := os.Getwd()
		path, errLook := launch.Look(os.Args[0], environ, cwd)
		if errLook != nil || errDir != nil {
			return nil, fmt.Errorf("finding this program's own path: %w", errors.Join(err, errDir, errLook))
		}
		self = path
	}
	places := []string{dir}
	if dir == "" {
		places = stateDirs()
	}
	var errs []error
	for _, d := range places {
		s := &state{dir: d, self: self}
		if err := s.open(); err != nil {
			errs = append(errs, err)
			continue
		}
		return s, nil
	}
	return nil, fmt.Errorf("no directory for the state can be used (--state-dir): %w", errors.Join(errs...))
}

func (s *state) open() error {
	if len(s.path(questionName)) > maxSocketPath {
		return fmt.Errorf("%s: longer than the %d bytes of a socket's path", s.path(questionName), maxSocketPath)
	}
	for _, sub := range []string{"bin", "tmp"} { // tmp is for launchers that find no other place on this or another host
		if err := os.MkdirAll(filepath.Join(s.dir, sub), 0o755); err != nil {
			return err
		}
	}
	info, err := os.Lstat(s.dir)
	if err != nil {
		return err
	}
	if err := owned(s.dir, info); err != nil {
		return err
	}
	// What an earlier start has left tells of its own hosts, and how that one ended.
	for _, name := range []string{"status.json", "hostfile", "hostfile.hydra", "ssh_config", "known_hosts"} {
		if err := os.Remove(s.path(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	link := s.path("bin/ssh")
	if err := replaceLink(s.self, link); err != nil {
		return err
	}
	if s.agent, err = s.socket(socketName); err != nil {
		return err
	}
	if s.questions, err = s.socket(questionName); err != nil {
		_ = s.agent.Close()
		return err
	}
	return nil
}

// socket listens where only this user, and root, can connect: the agent runs commands on all hosts of the job.
func (s *state) socket(name string) (*net.UnixListener, error) {
	if err := os.Remove(s.path(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.path(name), Net: "unix"})
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(s.path(name), 0o600); err != nil {
		_ = ln.Close()
		return nil, err
	}
	return ln, nil
}

func replaceLink(target, link string) error {
	tmp := link + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Symlink(target, tmp); err != nil {
		return err
	}
	return os.Rename(tmp, link)
}

func (s *state) path(name string) string { return filepath.Join(s.dir, name) }

func (s *state) writeHostfiles(hosts []hostfile.Host) error {
	for name, dialect := range map[string]hostfile.Dialect{"hostfile": hostfile.OpenMPI, "hostfile.hydra": hostfile.Hydra} {
		var b bytes.Buffer
		if err := hostfile.Write(&b, dialect, hosts); err != nil {
			return err
		}
		if err := s.writeFile(name, b.Bytes()); err != nil {
			return fmt.Errorf("writing the host list: %w", err)
		}
	}
	return nil
}

// writeFile replaces a file at once: whoever reads it sees the old one or the new one.
func (s *state) writeFile(name string, content []byte) error {
	tmp := s.path(name + ".new")
	if err := os.WriteFile(tmp, content, 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, s.path(name))
}

// close removes what must not be used any more; the host lists and the last status stay for whoever looks.
func (s *state) close() {
	_, _ = s.agent.Close(), s.questions.Close()
	_, _ = os.Remove(s.path(socketName)), os.Remove(s.path(questionName))
}
