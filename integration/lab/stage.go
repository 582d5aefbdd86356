package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/integration/testnetwork"
)

// Names and open files of this program when it is executed again inside new namespaces.
const (
	stageName    = "paiinit-lab-container"
	rootName     = "paiinit-lab-root"
	stagePlan    = 3
	stageFailure = 4
	stageLeft    = 5
)

// plan tells the first process of a container what to set up and to run.
type plan struct {
	Hostname string
	Args     []string
	Env      []string
	Dir      string
	Tmpfs    []string
	Overlay  []string
	Binds    map[string]string // source by target
	Files    map[string]string // contents by target
	Hide     []string
	Parent   bool
}

func stagePlanOf(p Program, m *Machine) plan {
	var hosts strings.Builder
	fmt.Fprintf(&hosts, "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost\n%s\t%s\n", m.Addr, p.Hostname)
	for _, name := range slices.Sorted(maps.Keys(p.Hosts)) {
		fmt.Fprintf(&hosts, "%s\t%s\n", p.Hosts[name], name)
	}
	dir := p.Dir
	if dir == "" {
		dir = "/"
	}
	return plan{
		Hostname: p.Hostname,
		Args:     p.Args,
		Env:      p.Env,
		Dir:      dir,
		Tmpfs:    append([]string{"/run", "/tmp", "/dev/shm"}, p.Tmpfs...),
		Overlay:  p.Overlay,
		Binds:    p.Binds,
		Files: map[string]string{
			"/etc/hosts":       hosts.String(),
			"/etc/resolv.conf": fmt.Sprintf("nameserver %s\noptions ndots:0\n", switchAddr),
		},
		Hide:   p.Hide,
		Parent: p.Parent,
	}
}

// Main sets up a container and executes its program, if the lab has executed this program again inside new namespaces;
// then it does not return. In a process of an ordinary user it runs this program again as root of a user namespace with
// a loopback interface, if the kernel allows that, and exits with its status. In all other processes it does nothing.
//
// A program that creates labs calls Main first; a command that must not run as another user calls it only when it needs
// a lab.
func Main() {
	switch {
	case os.Args[0] == stageName:
		err := stage()
		_, _ = fmt.Fprint(os.NewFile(stageFailure, "failure"), err)
		os.Exit(1)
	case os.Args[0] == rootName:
		if err := loopback(); err != nil { // what needs no lab may use it
			fmt.Fprintln(os.Stderr, "lab: bringing up the loopback interface:", err)
			os.Exit(1)
		}
	case os.Geteuid() != 0:
		if status, err := runAsRoot(); err == nil {
			os.Exit(status)
		} // otherwise Missing reports the problem
	}
}

// runAsRoot runs this program again in a user namespace in which this user is root.
func runAsRoot() (int, error) {
	return testnetwork.RunAgain(&exec.Cmd{
		Path: "/proc/self/exe", Args: append([]string{rootName}, os.Args[1:]...),
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		},
	})
}

// loopback brings lo up. A new network namespace has it down.
func loopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo)
}

// stage sets up the namespaces of this process and executes the program.
func stage() error {
	syscall.CloseOnExec(stageFailure)
	syscall.CloseOnExec(stageLeft)
	file := os.NewFile(stagePlan, "plan")
	var p plan
	if err := json.NewDecoder(file).Decode(&p); err != nil {
		return fmt.Errorf("reading the plan: %w", err)
	}
	_ = file.Close()
	if err := p.mount(); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(p.Hostname)); err != nil {
		return fmt.Errorf("setting the host name %q: %w", p.Hostname, err)
	}
	if err := os.Chdir(p.Dir); err != nil {
		return err
	}
	path, err := look(p.Args, p.Env)
	if err != nil {
		return err
	}
	if p.Parent {
		return p.parent(path)
	}
	// The parent-death signal belongs to a thread, and exec keeps only the thread that calls it: set the signal on this
	// one.
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("setting the parent-death signal: %w", err)
	}
	return &fs.PathError{Op: "exec", Path: path, Err: syscall.Exec(path, p.Args, p.Env)}
}

func (p plan) mount() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	// Open the sources first, because a tmpfs may hide them.
	sources := map[string]*os.File{}
	for target, source := range p.Binds {
		fd, err := unix.Open(source, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return &fs.PathError{Op: "open", Path: source, Err: err}
		}
		sources[target] = os.NewFile(uintptr(fd), source)
	}
	for _, dir := range p.Tmpfs {
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("making a mount point: %w", err)
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777"); err != nil {
			return fmt.Errorf("mounting a tmpfs on %s: %w", dir, err)
		}
	}
	for i, dir := range p.Overlay {
		if err := overlay(dir, fmt.Sprintf("/run/.lab-%d", i)); err != nil {
			return err
		}
	}
	for _, name := range []string{"proc", "sysfs"} {
		dir := "/" + strings.TrimSuffix(name, "fs")
		if err := unix.Mount(name, dir, name, unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
			return fmt.Errorf("mounting %s: %w", dir, err)
		}
	}
	for _, target := range slices.Sorted(maps.Keys(sources)) { // parents first
		if err := p.bind(sources[target], target); err != nil {
			return err
		}
	}
	for target, text := range p.Files {
		if err := p.bindText(text, target); err != nil {
			return err
		}
	}
	return p.hide()
}

// overlay mounts a writable view of a directory of this host. Changes go to another directory.
func overlay(dir, changes string) error {
	for _, part := range []string{"/upper", "/work"} {
		if err := os.MkdirAll(changes+part, 0o755); err != nil {
			return err
		}
	}
	// Without userxattr, only root of the initial user namespace can use it.
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%s/work,userxattr", dir, changes, changes)
	if err := unix.Mount("overlay", dir, "overlay", 0, options); err != nil {
		return fmt.Errorf("mounting an overlay on %s: %w", dir, err)
	}
	return nil
}

func (p plan) hide() error {
	null, err := os.Open("/dev/null")
	if err != nil {
		return err
	}
	for _, target := range p.Hide {
		if _, err := os.Stat(target); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := p.bind(null, target); err != nil {
			return err
		}
	}
	return null.Close()
}

// bindText mounts a file with the text on target.
func (p plan) bindText(text, target string) error {
	f, err := os.CreateTemp("/run", ".lab-*")
	if err != nil {
		return err
	}
	if _, err := f.WriteString(text); err != nil {
		return err
	}
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	if err := p.bind(f, target); err != nil {
		return err
	}
	if err := os.Remove(f.Name()); err != nil { // the mount keeps the file
		return err
	}
	return f.Close()
}

// bind mounts an open file or directory on target.
func (p plan) bind(source *os.File, target string) error {
	info, err := source.Stat()
	if err != nil {
		return err
	}
	target, err = p.mountPoint(target, info.IsDir())
	if err != nil {
		return err
	}
	file := fmt.Sprintf("/proc/self/fd/%d", source.Fd())
	if err := unix.Mount(file, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("binding %s to %s: %w", source.Name(), target, err)
	}
	return nil
}

// mountPoint resolves target. It also follows dangling symbolic links: /etc/resolv.conf often points into /run, which
// is a tmpfs. It creates a missing mount point only on a tmpfs or an overlay, because everything else belongs to this
// host.
func (p plan) mountPoint(target string, dir bool) (string, error) {
	for range 8 {
		link, err := os.Readlink(target)
		if err != nil {
			break
		}
		if !filepath.IsAbs(link) {
			link = filepath.Join(filepath.Dir(target), link)
		}
		target = filepath.Clean(link)
	}
	if _, err := os.Stat(target); err == nil {
		return target, nil
	}
	private := func(dir string) bool { return strings.HasPrefix(target, dir+"/") }
	if !slices.ContainsFunc(append(p.Tmpfs, p.Overlay...), private) {
		return "", fmt.Errorf("mount point %s does not exist, and is on no tmpfs or overlay of the container", target)
	}
	if dir {
		return target, os.MkdirAll(target, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return "", err
	}
	return target, os.WriteFile(target, nil, 0o644)
}

// look searches the program in the PATH of its own environment.
func look(args, env []string) (string, error) {
	if len(args) == 0 {
		return "", errors.New("no program")
	}
	if strings.Contains(args[0], "/") {
		return args[0], nil
	}
	for _, v := range slices.Backward(env) {
		list, ok := strings.CutPrefix(v, "PATH=")
		if !ok {
			continue
		}
		for _, dir := range filepath.SplitList(list) {
			if path := filepath.Join(dir, args[0]); unix.Access(path, unix.X_OK) == nil {
				return path, nil
			}
		}
		break
	}
	return "", &fs.PathError{Op: "look up", Path: args[0], Err: fs.ErrNotExist}
}
