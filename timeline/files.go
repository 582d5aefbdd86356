package timeline

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"
)

// WriteFile writes to a file in place, because it may be /dev/stdout.
func WriteFile(file string, write func(io.Writer) error) error {
	f, err := os.Create(filepath.Clean(file))
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}

// leaveTimeout bounds how long a slow file system may delay the end of a container.
const leaveTimeout = 5 * time.Second

// Leave writes report.html, timeline.json and, by the function, status.json into a directory, which it creates. After
// leaveTimeout it returns without waiting for the file system.
func (p *Page) Leave(dir string, status func(io.Writer) error) error {
	done := make(chan error, 1)
	go func() {
		err := os.MkdirAll(dir, 0o755)
		for _, f := range []struct {
			name  string
			write func(io.Writer) error
		}{{"report.html", p.WriteHTML}, {"timeline.json", p.Timeline.WriteTrace}, {"status.json", status}} {
			if err == nil {
				err = WriteFile(filepath.Join(dir, f.name), f.write)
			}
		}
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-time.After(leaveTimeout):
		return errors.New("the file system does not answer")
	}
}
