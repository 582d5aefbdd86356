// Package install copies this program into a directory that other containers mount. It hides how a copy appears there
// in one step, also where an older copy runs and where several containers copy at once.
package install

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Name is the name of the copy.
const Name = "paiinit"

// executable are the bits of a file's mode that let every user run it.
const executable = 0o555

// Self copies this program to Name in dir.
func Self(dir string) error { return Copy("/proc/self/exe", dir) }

// Copy copies a program to Name in dir. It creates dir, but not its parents. It writes nothing if an executable file
// with the same content is there already, and leaves nothing behind if it fails.
//
// The copy gets its name by a rename: an older copy may be running, which cannot be written to (ETXTBSY), and other
// containers that copy at the same time never see a part of a file.
func Copy(program, dir string) error {
	from, err := os.Open(program)
	if err != nil {
		return fmt.Errorf("reading this program: %w", err)
	}
	defer func() { _ = from.Close() }()
	name := filepath.Join(dir, Name)
	if isCopy(from, name) {
		return nil
	}
	if _, err := from.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("reading this program: %w", err)
	}
	err = os.Mkdir(dir, 0o755)
	isNew := err == nil
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("creating the directory %s: %w", dir, cause(err))
	}
	if err := replace(from, dir, name); err != nil {
		if isNew {
			_ = os.Remove(dir) // fails if another container has a file in it
		}
		return fmt.Errorf("writing %s: %w", name, cause(err))
	}
	return nil
}

// isCopy reports whether name is an executable file with the content of program. A link is none: it may lead nowhere in
// another container.
func isCopy(program *os.File, name string) bool {
	info, err := os.Lstat(name)
	if err != nil || !info.Mode().IsRegular() || info.Mode()&executable != executable {
		return false
	}
	own, err := program.Stat()
	if err != nil || own.Size() != info.Size() {
		return false
	}
	file, err := os.Open(name)
	if err != nil {
		return false
	}
	defer func() { _ = file.Close() }()
	return same(program, file)
}

// same reports whether two readers have the same content.
func same(a, b io.Reader) bool {
	const size = 64 << 10
	left, right := make([]byte, size), make([]byte, size)
	for {
		n, errLeft := io.ReadFull(a, left)
		m, errRight := io.ReadFull(b, right)
		ended := errors.Is(errLeft, io.EOF) || errors.Is(errLeft, io.ErrUnexpectedEOF)
		switch {
		case string(left[:n]) != string(right[:m]):
			return false
		case ended || errLeft != nil || errRight != nil:
			return ended && errors.Is(errRight, errLeft)
		}
	}
}

// replace writes a file beside name, and renames it to name once all of it is on the disk.
func replace(from io.Reader, dir, name string) (err error) {
	to, err := os.CreateTemp(dir, "."+Name+"-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = to.Close() // a second Close does nothing
			_ = os.Remove(to.Name())
		}
	}()
	if _, err := io.Copy(to, from); err != nil {
		return err
	}
	if err := makeExecutable(to); err != nil {
		return err
	}
	if err := to.Sync(); err != nil {
		return err
	}
	if err := to.Close(); err != nil { // network file systems report a full disk here
		return err
	}
	return os.Rename(to.Name(), name)
}

// makeExecutable sets the mode of a file. A file system without modes, such as a share of SMB, may refuse that: then
// its own mode for all files must do.
func makeExecutable(file *os.File) error {
	err := file.Chmod(0o755)
	if err == nil {
		return nil
	}
	if info, statErr := file.Stat(); statErr == nil && info.Mode()&executable == executable {
		return nil
	}
	return err
}

// cause returns an error without the name of the temporary file, which is gone, and without the system call.
func cause(err error) error {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno
	}
	return err
}
