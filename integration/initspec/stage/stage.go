// Package stage starts a process in new namespaces and makes it PID 1 of a container, with a root directory of its own.
package stage

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// Plan describes a container. With the zero values of Bare, ReadOnly and NoProc it resembles a container of Docker.
type Plan struct {
	// Root is the container's root directory on this host. It has all mount points: Dirs, and Devices in dev.
	Root string
	// Args is the path of the program, without a look-up in PATH, and its arguments. Env is its environment.
	Args, Env []string
	// ReadOnly makes Root read-only. Bare omits the writable file systems on /run, /tmp and /dev/shm.
	ReadOnly, Bare bool
	// NoProc omits /proc.
	NoProc bool
}

// Devices are the files that Root has in dev.
var Devices = []string{"null", "zero", "full", "random", "urandom", "tty"}

// Dirs are the directories that Root has.
var Dirs = []string{"proc", "sys", "dev", "dev/shm", "run", "tmp"}

// Command returns a command that runs the program inside, which calls Become, in new PID, mount, UTS, IPC and network
// namespaces, and with user also as root of a new user namespace. The caller sets the standard files.
func (p Plan) Command(inside string, user bool) (*exec.Cmd, error) {
	plan, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(inside, "stage", string(plan))
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC |
			syscall.CLONE_NEWNET,
	}
	if user {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		if os.Geteuid() == 0 {
			// Map root to an ordinary user of this host.
			m := []syscall.SysProcIDMap{{HostID: 100000, Size: 65536}}
			cmd.SysProcAttr.UidMappings, cmd.SysProcAttr.GidMappings = m, m
			cmd.SysProcAttr.GidMappingsEnableSetgroups = true
			cmd.SysProcAttr.Credential = &syscall.Credential{}
		} else {
			cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}
			cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
		}
	}
	return cmd, nil
}

// ExecFile is the file descriptor of the first of the command's ExtraFiles. Become closes it when it executes the
// program.
const ExecFile = 3

// Become sets up the namespaces of this process and executes the program. It returns only if that fails.
func (p Plan) Become() error {
	unix.CloseOnExec(ExecFile)
	if err := p.mounts(); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte("initspec")); err != nil {
		return fmt.Errorf("setting the host name: %w", err)
	}
	if err := loopback(); err != nil {
		return fmt.Errorf("bringing the loopback interface up: %w", err)
	}
	if err := unix.Chroot(p.Root); err != nil {
		return &fs.PathError{Op: "chroot", Path: p.Root, Err: err}
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	return &fs.PathError{Op: "exec", Path: p.Args[0], Err: syscall.Exec(p.Args[0], p.Args, p.Env)}
}

func (p Plan) mounts() error {
	in := func(dir string) string { return filepath.Join(p.Root, dir) }
	var errs []error
	mount := func(source, target, kind string, flags uintptr, data string) {
		if err := unix.Mount(source, target, kind, flags, data); err != nil {
			errs = append(errs, fmt.Errorf("mounting %s on %s: %w", source, target, err))
		}
	}
	mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	mount(p.Root, p.Root, "", unix.MS_BIND|unix.MS_REC, "")
	if p.ReadOnly {
		// In a user namespace, a remount must keep the flags of the mount.
		var st unix.Statfs_t
		if err := unix.Statfs(p.Root, &st); err != nil {
			return &fs.PathError{Op: "statfs", Path: p.Root, Err: err}
		}
		kept := uintptr(st.Flags) & (unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_NOATIME |
			unix.MS_NODIRATIME | unix.MS_RELATIME)
		mount("", p.Root, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|kept, "")
	}
	for _, name := range Devices {
		mount("/dev/"+name, in("dev/"+name), "", unix.MS_BIND, "")
	}
	if !p.Bare {
		for _, dir := range []string{"run", "tmp", "dev/shm"} {
			mount("tmpfs", in(dir), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777")
		}
	}
	if !p.NoProc {
		mount("proc", in("proc"), "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	}
	return errors.Join(errs...)
}

// loopback brings lo up, as container runtimes do.
func loopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr)
}
