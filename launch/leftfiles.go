package launch

import (
	"cmp"
	"io/fs"
	"slices"
	"strings"
)

// LeftFile is a file or directory that a job has left behind.
type LeftFile struct {
	Name string
	Size int64 // in bytes; of a directory: of all files below that can be read
}

// LeftFiles lists what a job has left in a directory such as /tmp or /dev/shm, the largest first: entries that the
// directory did not have before, and those that launchers use again in the next job. It removes nothing. before is the
// result of fs.ReadDir(fsys, ".") before the launch. A directory that cannot be read has none.
func LeftFiles(fsys fs.FS, before []fs.DirEntry) (found []LeftFile) {
	old := make(map[string]bool, len(before))
	for _, e := range before {
		old[e.Name()] = true
	}
	now, _ := fs.ReadDir(fsys, ".")
	for _, e := range now {
		if old[e.Name()] && !isReused(e.Name()) {
			continue
		}
		l := LeftFile{Name: e.Name()}
		_ = fs.WalkDir(fsys, e.Name(), func(_ string, e fs.DirEntry, err error) error {
			if err != nil {
				return nil // it is gone, or unreadable
			}
			if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
				l.Size += info.Size()
			}
			return nil
		})
		found = append(found, l)
	}
	slices.SortStableFunc(found, func(a, b LeftFile) int { return cmp.Compare(b.Size, a.Size) })
	return found
}

// isReused reports whether a launcher uses the same directory for each job of a host and user.
func isReused(name string) bool {
	return slices.ContainsFunc(launchers, func(l *Launcher) bool {
		return l.SessionDir != "" && strings.HasPrefix(name, l.SessionDir)
	})
}
