package launch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
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

// LookError says why a command cannot be run.
type LookError struct {
	// Name is the command as the caller gave it.
	Name string
	// Status is the exit status that a shell returns: 127 if not found, 126 if not executable.
	Status int
	// Err is the cause.
	Err error
}

// Error returns the name of the command and the cause.
func (e *LookError) Error() string { return fmt.Sprintf("running %q: %v", e.Name, e.Err) }

// Unwrap returns the cause.
func (e *LookError) Unwrap() error { return e.Err }

// Look finds the executable file of a command like a shell: a name with a slash is a path, other names are searched in
// the PATH of environ (not of this process). Relative paths begin at dir, an absolute path; if dir is "", they begin at
// the working directory, and the result is relative.
//
// Every error is a [*LookError]. Unlike a shell, Look refuses a file that it finds through a relative entry of PATH:
// that is an error with [exec.ErrDot].
func Look(name string, environ []string, dir string) (string, error) {
	if strings.Contains(name, "/") {
		file := name
		if dir != "" && !filepath.IsAbs(file) {
			file = filepath.Join(dir, file)
		}
		if err := executable(file); err != nil {
			return "", lookError(name, err)
		}
		return file, nil
	}
	if name == "" {
		return "", &LookError{name, statusNotFound, errors.New("the command is empty")}
	}
	search, set := lookupEnv(environ, "PATH")
	if !set {
		search = defaultPath
	}
	var denied error
	for _, entry := range filepath.SplitList(search) {
		relative := !filepath.IsAbs(entry) // also if it is empty, which means the working directory
		file := filepath.Join(entry, name)
		if relative && dir != "" {
			file = filepath.Join(dir, file)
		}
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
	search, set := lookupEnv(environ, "PATH")
	if !set {
		search = defaultPath
	}
	isSelf := func(file string) bool {
		fi, err := os.Stat(file)
		return err == nil && os.SameFile(fi, self)
	}
	entries := filepath.SplitList(search)
	entries = entries[1+slices.IndexFunc(entries,
		func(e string) bool { return filepath.IsAbs(e) && isSelf(filepath.Join(e, name)) }):]
	for _, entry := range entries {
		file := filepath.Join(entry, name)
		if filepath.IsAbs(entry) && executable(file) == nil && !isSelf(file) {
			return file, nil
		}
	}
	return "", &LookError{name, statusNotFound, fmt.Errorf("there is no other %s in PATH (%s)", name, search)}
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
	e := &LookError{name, statusCannotExecute, err}
	if notThere(err) {
		e.Status = statusNotFound
	}
	return e
}
