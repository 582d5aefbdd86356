package launch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// OwnPath returns the path of this program.
func OwnPath(environ []string) (string, error) {
	self, err := os.Executable()
	if err == nil {
		return self, nil
	}
	cwd, errDir := os.Getwd() // os.Executable needs /proc
	self, errLook := Look(os.Args[0], environ, cwd)
	if errLook != nil || errDir != nil {
		return "", fmt.Errorf("finding this program's own path: %w", errors.Join(err, errDir, errLook))
	}
	return self, nil
}

// NamesSelf reports whether a word of a command line names this program: paiinit, or another name of the same file. The
// names of the links in the state directory's bin do not count: under these, this program does the work of another
// program, which may be a job's command.
func NamesSelf(word string, environ []string) bool {
	switch name := filepath.Base(word); {
	case name == "paiinit":
		return true
	case name == "ssh", name == "rsh", FillNamed(name) != nil:
		return false
	}
	path, err := Look(word, environ, "")
	return err == nil && IsSelf(path)
}
