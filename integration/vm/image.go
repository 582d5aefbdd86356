package vm

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// image collects the files of an initial file system.
type image struct {
	files map[string]string // path on this host, by path in the image without the leading slash
}

// add adds a file of this host to the image, with the libraries that it needs.
func (m *image) add(name, from string) error {
	m.files[strings.TrimPrefix(name, "/")] = from
	out, err := exec.Command("ldd", from).Output()
	if err != nil {
		return nil // a static program, or not a program
	}
	for _, lib := range regexp.MustCompile(`/\S+\.so\S*`).FindAllString(string(out), -1) {
		if m.files[strings.TrimPrefix(lib, "/")] == "" {
			m.files[strings.TrimPrefix(lib, "/")] = lib
		}
	}
	return nil
}

// write writes the image in the format newc (the kernel's Documentation/driver-api/early-userspace/buffer-format.rst).
func (m *image) write(file string) (err error) {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := f.Close(); err == nil {
			err = cerr
		}
	}()
	w := bufio.NewWriter(f)
	dirs := map[string]bool{"proc": true, "sys": true, "dev": true, "run": true, "tmp": true}
	for name := range m.files {
		for d := path.Dir(name); d != "."; d = path.Dir(d) {
			dirs[d] = true
		}
	}
	inode := 0
	header := func(name string, mode, size int) error {
		inode++
		_, err := fmt.Fprintf(w, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
			inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, len(name)+1, 0)
		if err != nil {
			return err
		}
		_, err = w.WriteString(name + strings.Repeat("\x00", 1+pad(110+len(name)+1)))
		return err
	}
	for _, d := range sorted(dirs) {
		if err := header(d, 0o40755, 0); err != nil {
			return err
		}
	}
	for _, name := range sorted(m.files) {
		if err := m.copy(w, name, header); err != nil {
			return fmt.Errorf("vm: putting %s into an image: %w", name, err)
		}
	}
	if err := header("TRAILER!!!", 0, 0); err != nil {
		return err
	}
	return w.Flush()
}

func (m *image) copy(w *bufio.Writer, name string, header func(string, int, int) error) error {
	from, err := filepath.EvalSymlinks(m.files[name])
	if err != nil {
		return err
	}
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := header(name, 0o100755, int(info.Size())); err != nil {
		return err
	}
	if _, err := io.CopyN(w, f, info.Size()); err != nil {
		return err
	}
	_, err = w.WriteString(strings.Repeat("\x00", pad(int(info.Size()))))
	return err
}

func pad(n int) int { return (4 - n%4) % 4 }

// sorted returns the names in order, so that a directory comes before its contents.
func sorted[V any](m map[string]V) []string {
	var names []string
	for n := range m {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}
