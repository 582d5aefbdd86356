package launch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// The exit statuses of a shell for a command that it cannot run (POSIX.1-2017, Shell Command Language 2.8.2).
const (
	statusCannotExecute = 126
	statusNotFound      = 127
)

// defaultPath is searched if the environment has no PATH; Docker gives it to a container without PATH.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func pathOf(environ []string) string {
	if search, set := lookupEnv(environ, "PATH"); set {
		return search
	}
	return defaultPath
}

// LookError says why a command cannot be run.
type LookError struct {
	Name   string // the command as the caller gave it
	Status int    // the exit status of a shell: 127 if not found, 126 if not executable
	Err    error
}

func (e *LookError) Error() string { return fmt.Sprintf("running %q: %v", e.Name, e.Err) }
func (e *LookError) Unwrap() error { return e.Err }

// Look finds the executable file of a command like a shell: a name with a slash is a path, other names are searched in
// the PATH of environ (not of this process). Relative paths begin at dir, an absolute path; if dir is "", they begin at
// the working directory, and the result is relative.
//
// Every error is a [*LookError]. Unlike a shell, Look refuses a file that it finds through a relative entry of PATH:
// that is an error with [exec.ErrDot].
func Look(name string, environ []string, dir string) (string, error) {
	in := func(file string) string {
		if dir == "" || filepath.IsAbs(file) {
			return file
		}
		return filepath.Join(dir, file)
	}
	if strings.Contains(name, "/") {
		file := in(name)
		if err := executable(file); err != nil {
			return "", lookError(name, err)
		}
		return file, nil
	}
	if name == "" {
		return "", &LookError{name, statusNotFound, errors.New("the command is empty")}
	}
	search := pathOf(environ)
	var denied error
	for _, entry := range filepath.SplitList(search) {
		relative := !filepath.IsAbs(entry) // also if it is empty, which means the working directory
		file := in(filepath.Join(entry, name))
		err := executable(file)
		switch {
		case err == nil && relative:
			err = fmt.Errorf("found by the relative entry %q of PATH: %w", entry, exec.ErrDot)
			return "", &LookError{name, statusCannotExecute, err}
		case err == nil:
			return file, nil
		case denied == nil && !notThere(err):
			denied = err
		}
	}
	if denied != nil {
		return "", lookError(name, denied)
	}
	return "", &LookError{name, statusNotFound, fmt.Errorf("not found in PATH (%s)", search)}
}

// LookPast finds the program that a shell would find if self did not exist: it searches PATH after the first entry that
// holds self under this name, and skips further links to self and relative entries. A chain of programs that pass a
// call on in this way ends, because each moves further down PATH.
func LookPast(name string, environ []string, self fs.FileInfo) (string, error) {
	search := pathOf(environ)
	isSelf := func(file string) bool {
		fi, err := os.Stat(file)
		return err == nil && os.SameFile(fi, self)
	}
	entries := filepath.SplitList(search)
	holdsSelf := func(entry string) bool { return filepath.IsAbs(entry) && isSelf(filepath.Join(entry, name)) }
	for _, entry := range entries[1+slices.IndexFunc(entries, holdsSelf):] {
		file := filepath.Join(entry, name)
		if filepath.IsAbs(entry) && executable(file) == nil && !isSelf(file) {
			return file, nil
		}
	}
	return "", &LookError{name, statusNotFound, fmt.Errorf("there is no other %s in PATH (%s)", name, search)}
}

// LookPastSelf finds the next program of a name in PATH after the link to this program.
func LookPastSelf(name string, environ []string) (string, error) {
	self, err := os.Stat("/proc/self/exe")
	if err != nil { // os.Executable reads the same link
		return "", fmt.Errorf("finding this program's own path: %w", err)
	}
	return LookPast(name, environ, self)
}

// Become executes another program in place of this process. It returns if that fails.
func Become(path string, args, environ []string) error {
	// Package early has requested a signal at the parent's death, which would survive the exec (prctl(2)).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Prctl(unix.PR_SET_PDEATHSIG, 0, 0, 0, 0)
	return fmt.Errorf("running %s: %w", path, syscall.Exec(path, args, environ))
}

// Value returns the first value of a variable, "" if it is not set.
func Value(environ []string, name string) string {
	value, _ := lookupEnv(environ, name)
	return value
}

// lookupEnv returns the first value of a variable, as getenv does.
func lookupEnv(environ []string, name string) (value string, set bool) {
	for _, kv := range environ {
		if k, v, ok := strings.Cut(kv, "="); ok && k == name {
			return v, true
		}
	}
	return "", false
}

// executable returns nil if this process may execute file.
func executable(file string) error {
	fi, err := os.Stat(file)
	if err != nil {
		return err
	}
	if fi.IsDir() {
		return &fs.PathError{Op: "execute", Path: file, Err: syscall.EISDIR}
	}
	err = unix.Faccessat(unix.AT_FDCWD, file, unix.X_OK, unix.AT_EACCESS)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		// Kernels before 5.8, and seccomp profiles without faccessat2.
		if err = nil; fi.Mode()&0o111 == 0 {
			err = syscall.EACCES
		}
	}
	if err != nil {
		return &fs.PathError{Op: "execute", Path: file, Err: err}
	}
	return nil
}

// notThere reports whether err says that a file does not exist, as opposed to a file that cannot be executed.
func notThere(err error) bool {
	return errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR) ||
		errors.Is(err, syscall.ENAMETOOLONG) || errors.Is(err, syscall.ELOOP)
}

func lookError(name string, err error) *LookError {
	if notThere(err) {
		return &LookError{name, statusNotFound, err}
	}
	return &LookError{name, statusCannotExecute, err}
}
