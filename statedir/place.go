package statedir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Place returns the directory that a paiinit of a job of that size could take now, without creating or locking it, and
// an error if there is none. named is the only directory to try; if it is "", the usual places are tried.
func Place(named string, size int) (string, error) {
	places := Identity{Index: -1}.places()
	if named != "" {
		places = []string{named}
	}
	var errs []error
	for _, dir := range places {
		err := usable(dir, size)
		if err == nil {
			return dir, nil
		}
		errs = append(errs, err)
	}
	return "", errors.Join(errs...)
}

// usable says why a paiinit that starts now could not use the directory.
func usable(dir string, size int) error {
	if longest := filepath.Join(dir, StatusSocket); len(longest) > maxSocketPath {
		return fmt.Errorf("%s: the path of a socket has at most %d bytes", longest, maxSocketPath)
	}
	info, err := os.Lstat(dir)
	there := dir
	switch {
	case err == nil:
		if err := checkOwner(dir, info); err != nil {
			return err
		}
		if _, dead := server(dir); dead == nil {
			id, _ := readIdentity(dir)
			return &takenError{id}
		}
	case errors.Is(err, fs.ErrNotExist): // Open creates it and its parents
		for errors.Is(err, fs.ErrNotExist) && there != filepath.Dir(there) {
			there = filepath.Dir(there)
			_, err = os.Stat(there)
		}
		if err != nil {
			return err
		}
	default:
		return err
	}
	if err := unix.Faccessat(unix.AT_FDCWD, there, unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return &os.PathError{Op: "write in", Path: there, Err: err}
	}
	var space unix.Statfs_t
	if err := unix.Statfs(there, &space); err == nil && space.Blocks > 0 &&
		space.Bavail*uint64(space.Frsize) < uint64(reserveMin+reserveEach*max(size, 0)) {
		return &os.PathError{Op: "write in", Path: there, Err: unix.ENOSPC}
	}
	return nil
}

// RunningHere names the paiinit that runs in this container, in a usual place or at named; "" if there is none. Another
// container that shares a place does not count.
func RunningHere(named string) string {
	unnamed := Identity{Index: -1, Rank: -1, Size: 1}.OfThisProcess()
	if running, ok := errors.AsType[*RunningError](unnamed.CheckAlone(named)); ok {
		return running.Owner.String()
	}
	return ""
}
