package initspec

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/paiinit/paiinit/integration/initspec/stage"
	"github.com/paiinit/paiinit/integration/sweep"
	"github.com/paiinit/paiinit/integration/testsignals"
)

// root is the root directory of all containers; inside is the program that sets up containers of namespaces.
var root, inside string

// noBusybox is the reason why root has no shell, "" if it has one.
var noBusybox string

// image is root as a Docker image. noDocker is the reason why there is no image.
var image, noDocker string

// runName is part of the name of each object that this run creates in the Docker engine.
var runName = sweep.NewName()

func TestMain(m *testing.M) {
	testsignals.Default()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "paiinit-initspec-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := makeRoot(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	stop, err := sweep.Later(runName)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer stop()
	if noDocker = noBusybox; noDocker == "" {
		noDocker = importImage()
	}
	return m.Run()
}

// build builds a command as released: static, and without the race detector.
func build(file, pkg, ldflags string) error {
	cmd := exec.Command("go", "build", "-trimpath", "-tags", "urfave_cli_no_docs", "-ldflags", ldflags, "-o", file, pkg)
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w\n%s", pkg, err, out)
	}
	return nil
}

// makeRoot fills the root directory, which other users can read and which has no /etc/passwd.
func makeRoot(dir string) error {
	root = filepath.Join(dir, "root")
	inside = filepath.Join(root, "bin/inside")
	err := os.Chmod(dir, 0o755)
	for _, d := range append([]string{"bin", "sbin", "etc", "files"}, stage.Dirs...) {
		err = errors.Join(err, os.MkdirAll(filepath.Join(root, d), 0o755))
	}
	for _, d := range stage.Devices {
		err = errors.Join(err, os.WriteFile(filepath.Join(root, "dev", d), nil, 0o644))
	}
	for name, text := range files {
		mode := fs.FileMode(0o755)
		if strings.HasPrefix(name, "plain") {
			mode = 0o644
		}
		err = errors.Join(err, os.WriteFile(filepath.Join(root, "files", name), []byte(text), mode))
	}
	err = errors.Join(err, build(filepath.Join(root, "sbin/paiinit"), "./cmd/paiinit", "-s -w"),
		build(inside, "./integration/initspec/inside", "-s -w"))
	if err != nil {
		return err
	}
	busybox, err := findBusybox()
	if err != nil {
		noBusybox = err.Error()
		return nil
	}
	copied, err := os.ReadFile(busybox)
	if err == nil {
		err = os.WriteFile(filepath.Join(root, "bin/busybox"), copied, 0o755)
	}
	for _, name := range []string{"sh", "sleep", "cat", "true", "id", "grep", "setsid", "stty", "kill", "echo", "ps",
		"env", "touch", "ln", "cut", "nproc"} {
		err = errors.Join(err, os.Symlink("busybox", filepath.Join(root, "bin", name)))
	}
	return err
}

// findBusybox looks for a static busybox.
func findBusybox() (string, error) {
	for _, name := range []string{"busybox", "busybox.static", "/bin/busybox", "/usr/bin/busybox"} {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		out, err := exec.Command("readelf", "--wide", "--program-headers", path).CombinedOutput()
		if err == nil && !bytes.Contains(out, []byte(" INTERP ")) {
			return path, nil
		}
	}
	return "", errors.New("no static busybox; on Debian or Ubuntu: apt-get install busybox-static")
}

// importImage creates the Docker image, without a build or a registry. It returns the reason if it cannot.
func importImage() string {
	if _, err := exec.LookPath("docker"); err != nil {
		return "no docker command"
	}
	if out, err := exec.Command("docker", "version", "--format", "{{.Server.Version}}").CombinedOutput(); err != nil {
		return fmt.Sprintf("no Docker engine: %v: %s", err, bytes.TrimSpace(out))
	}
	archive, w := io.Pipe()
	go func() { w.CloseWithError(archiveRoot(w)) }()
	name := "paiinit-initspec:" + runName
	cmd := exec.Command("docker", "import", "--change", `ENTRYPOINT ["/sbin/paiinit"]`, "-", name)
	cmd.Stdin = archive
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Sprintf("docker import: %v: %s", err, bytes.TrimSpace(out))
	}
	image = name
	return ""
}

// archiveRoot writes the root directory as an archive, owned by root, without the devices, which Docker creates.
func archiveRoot(w io.Writer) error {
	tw := tar.NewWriter(w)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel(root, path)
		if err != nil || name == "." || filepath.Dir(name) == "dev" {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		link := ""
		if info.Mode()&fs.ModeSymlink != 0 {
			if link, err = os.Readlink(path); err != nil {
				return err
			}
		}
		h, err := tar.FileInfoHeader(info, link)
		if err != nil {
			return err
		}
		h.Name, h.Uid, h.Gid, h.Uname, h.Gname = name, 0, 0, "", ""
		if err := tw.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if err == nil {
			_, err = tw.Write(data)
		}
		return err
	})
	return errors.Join(err, tw.Close())
}
