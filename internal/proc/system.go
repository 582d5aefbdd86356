package proc

import (
	"io/fs"
	"os"
	"syscall"
)

// System is the /proc of this process. It reads files and directories with as few system calls as it can: a rank reads
// all of /proc several times when its job starts again. docs/benchmarks.md shows the gain (Reading /proc).
type System struct{}

const root = "/proc/"

// Open implements [fs.FS].
func (System) Open(name string) (fs.File, error) { return os.DirFS(root).Open(name) }

// ReadFile implements [fs.ReadFileFS].
func (System) ReadFile(name string) (content []byte, err error) {
	err = reading(name, 0, func(fd int) error {
		content = make([]byte, 0, 512) // more than a line of stat
		for {
			n, err := syscall.Read(fd, content[len(content):cap(content)])
			if err != nil || n <= 0 {
				return err
			}
			content = content[:len(content)+n]
			if len(content) == cap(content) {
				content = append(content, 0)[:len(content)]
			}
		}
	})
	return content, err
}

// ReadDir implements [fs.ReadDirFS], but does not sort, and the entries know their names only.
func (System) ReadDir(name string) (entries []fs.DirEntry, err error) {
	err = reading(name, syscall.O_DIRECTORY, func(fd int) error {
		b := make([]byte, 4096)
		var names []string
		for {
			n, err := syscall.Getdents(fd, b)
			if err != nil || n <= 0 {
				return err
			}
			_, _, names = syscall.ParseDirent(b[:n], -1, names[:0])
			for _, name := range names {
				entries = append(entries, entry(name))
			}
		}
	})
	return entries, err
}

// reading opens a file for a function that reads it. Its errors are of type *fs.PathError.
func reading(name string, flags int, read func(fd int) error) error {
	fd, err := syscall.Open(root+name, syscall.O_RDONLY|syscall.O_CLOEXEC|flags, 0)
	if err == nil {
		err = read(fd)
		_ = syscall.Close(fd)
	}
	if err != nil {
		return &fs.PathError{Op: "read", Path: root + name, Err: err}
	}
	return nil
}

// entry is the name of a file.
type entry string

func (e entry) Name() string               { return string(e) }
func (e entry) IsDir() bool                { return false }
func (e entry) Type() fs.FileMode          { return fs.ModeIrregular }
func (e entry) Info() (fs.FileInfo, error) { return nil, fs.ErrInvalid }
