// Command guest is the init of a test's virtual machine: it loads the kernel modules in /modules, reads commands from
// the second serial line, runs them, and answers each with its result.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/integration/vm/wire"
)

func main() {
	var err error
	switch {
	case len(os.Args) > 1 && os.Args[1] == "stage":
		err = stage(os.Args[2], os.Args[3:])
	case len(os.Args) > 1 && os.Args[1] == "env":
		for _, kv := range os.Environ() {
			fmt.Fprintln(os.Stdout, kv)
		}
		return
	case len(os.Args) > 2 && os.Args[1] == "hostname":
		if err = unix.Sethostname([]byte(os.Args[2])); err == nil {
			return
		}
	case len(os.Args) > 3 && os.Args[1] == "chmod":
		var mode uint64
		if mode, err = strconv.ParseUint(os.Args[2], 8, 32); err == nil {
			err = os.Chmod(os.Args[3], os.FileMode(mode))
		}
		if err == nil {
			return
		}
	default:
		err = boot()
	}
	fmt.Fprintln(os.Stderr, "guest:", err)
	if os.Getpid() == 1 {
		_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	}
	os.Exit(125)
}

func boot() error {
	for _, m := range [][3]string{
		{"proc", "/proc", "proc"}, {"sysfs", "/sys", "sysfs"}, {"devtmpfs", "/dev", "devtmpfs"},
		{"tmpfs", "/run", "tmpfs"}, {"tmpfs", "/tmp", "tmpfs"},
	} {
		if err := unix.Mount(m[0], m[1], m[2], 0, ""); err != nil {
			return fmt.Errorf("mounting %s: %w", m[1], err)
		}
	}
	if err := load("/modules"); err != nil {
		return err
	}
	line, err := os.OpenFile("/dev/ttyS1", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	if err := raw(line); err != nil {
		return err
	}
	out := json.NewEncoder(line)
	if err := out.Encode(wire.Result{Stdout: "ready"}); err != nil {
		return err
	}
	for in := json.NewDecoder(line); ; {
		var c wire.Command
		if err := in.Decode(&c); err != nil {
			return fmt.Errorf("reading a command: %w", err)
		}
		if err := out.Encode(run(c)); err != nil {
			return fmt.Errorf("answering: %w", err)
		}
	}
}

// load inserts the modules in the order of their names.
func load(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		f, err := os.Open(dir + "/" + e.Name())
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		_ = f.Close()
		// Some modules need a processor feature that this machine lacks.
		if err != nil && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("loading %s: %w", e.Name(), err)
		}
	}
	return nil
}

func raw(line *os.File) error {
	t, err := unix.IoctlGetTermios(int(line.Fd()), unix.TCGETS)
	if err != nil {
		return err
	}
	t.Iflag, t.Oflag, t.Lflag = 0, 0, 0
	t.Cflag = t.Cflag&^(unix.CSIZE|unix.PARENB) | unix.CS8 | unix.CREAD | unix.CLOCAL
	t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 1, 0
	return unix.IoctlSetTermios(int(line.Fd()), unix.TCSETS, t)
}

func run(c wire.Command) wire.Result {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(c.Seconds)*time.Second)
	defer cancel()
	spec, err := json.Marshal(c)
	if err != nil {
		return wire.Result{Status: -1, Stderr: err.Error()}
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe", append([]string{"stage", string(spec)}, c.Args...)...)
	cmd.Env = slices.Concat([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/"}, c.Env)
	cmd.WaitDelay = 30 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if c.NewNetwork {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWNET
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	r := wire.Result{Status: cmd.ProcessState.ExitCode(), Stdout: stdout.String(), Stderr: stderr.String()}
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		r.Status, r.Stderr = -1, r.Stderr+err.Error()
	}
	return r
}

// stage runs between fork and exec: it sets up mounts, limits and user, and executes the command.
func stage(spec string, args []string) error {
	var c wire.Command
	if err := json.Unmarshal([]byte(spec), &c); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	if c.FreshSys {
		if err := unix.Mount("sysfs", "/sys", "sysfs", 0, ""); err != nil {
			return fmt.Errorf("mounting /sys: %w", err)
		}
	}
	for _, dir := range c.Hide {
		if err := unix.Mount("none", dir, "tmpfs", 0, ""); err != nil {
			return fmt.Errorf("hiding %s: %w", dir, err)
		}
	}
	if c.Memlock > 0 {
		if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: c.Memlock, Max: c.Memlock}); err != nil {
			return fmt.Errorf("limiting locked memory: %w", err)
		}
	}
	if c.UID > 0 {
		if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(c.UID), syscall.Setuid(c.UID)); err != nil {
			return fmt.Errorf("changing to user %d: %w", c.UID, err)
		}
	}
	path := args[0]
	if !strings.Contains(path, "/") {
		var err error
		if path, err = exec.LookPath(path); err != nil {
			return err
		}
	}
	return fmt.Errorf("running %s: %w", path, syscall.Exec(path, args, os.Environ()))
}
