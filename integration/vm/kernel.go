package vm

import (
	"archive/tar"
	"bufio"
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

// Kernel is an unpacked kernel package.
type Kernel struct {
	Image   string            // path of vmlinuz
	modules map[string]string // paths of modules by name, with "_" for "-"
}

// moduleDirs are the directories of modules to unpack. The whole package is ten times as big.
var moduleDirs = []string{
	"arch/x86/crypto", "crypto", "lib", "fs/configfs", "drivers/virtio",
	"drivers/infiniband/core", "drivers/infiniband/sw",
	"drivers/net/dummy", "drivers/net/veth", "drivers/net/virtio_net", "drivers/net/net_failover",
	"net/core", "net/ipv4", "net/ipv6",
}

// FindKernel returns the kernel in cache. If the cache is empty, it downloads the newest kernel from Debian's archive
// (70 MB), but not of the cloud flavour, which lacks rdma_rxe.
func FindKernel(cache string) (*Kernel, error) {
	found, err := filepath.Glob(filepath.Join(cache, "linux-image-*", "boot", "vmlinuz-*"))
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		dir, err := fetchKernel(cache)
		if err != nil {
			return nil, fmt.Errorf("vm: getting a kernel: %w", err)
		}
		if found, err = filepath.Glob(filepath.Join(dir, "boot", "vmlinuz-*")); err != nil || len(found) != 1 {
			return nil, fmt.Errorf("vm: the kernel package holds %d kernels: %w", len(found), err)
		}
	}
	k := &Kernel{Image: found[len(found)-1], modules: make(map[string]string)}
	err = filepath.WalkDir(filepath.Dir(filepath.Dir(k.Image)), func(name string, _ os.DirEntry, err error) error {
		if module, ok := strings.CutSuffix(filepath.Base(name), ".ko"); ok {
			k.modules[strings.ReplaceAll(module, "-", "_")] = name
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("vm: listing kernel modules: %w", err)
	}
	return k, nil
}

func fetchKernel(cache string) (dir string, err error) {
	out, err := exec.Command("apt-cache", "depends", "linux-image-amd64").Output()
	if err != nil {
		return "", fmt.Errorf("looking for a package: %w", err)
	}
	name := ""
	for line := range strings.Lines(string(out)) {
		if p, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: linux-image-"); ok {
			name = "linux-image-" + p
		}
	}
	if name == "" {
		return "", errors.New("linux-image-amd64 does not depend on a kernel; run apt-get update")
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(cache, "fetch-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	get := exec.Command("apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", name)
	get.Dir = tmp
	if out, err := get.CombinedOutput(); err != nil {
		return "", fmt.Errorf("downloading %s: %w: %s", name, err, bytes.TrimSpace(out))
	}
	debs, err := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if err != nil || len(debs) != 1 {
		return "", fmt.Errorf("downloading %s: %d files: %w", name, len(debs), err)
	}
	root := filepath.Join(tmp, "root")
	if err := unpackKernel(debs[0], root); err != nil {
		return "", fmt.Errorf("unpacking %s: %w", filepath.Base(debs[0]), err)
	}
	dir = filepath.Join(cache, name)
	return dir, os.Rename(root, dir)
}

func unpackKernel(deb, root string) error {
	cmd := exec.Command("dpkg-deb", "--fsys-tarfile", deb)
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	err = unpackTar(bufio.NewReaderSize(pipe, 1<<20), root)
	_, _ = io.Copy(io.Discard, pipe) // let dpkg-deb write the rest and end
	return errors.Join(err, cmd.Wait())
}

func unpackTar(r io.Reader, root string) error {
	for archive := tar.NewReader(r); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if h.Typeflag != tar.TypeReg || !wanted(path.Clean(h.Name)) {
			continue
		}
		name := filepath.Join(root, filepath.FromSlash(path.Clean("/"+h.Name)))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		f, err := os.Create(name)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, archive)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
}

// wanted matches boot/vmlinuz-VERSION and the modules of moduleDirs, lib/modules/VERSION/kernel/DIR/...
func wanted(name string) bool {
	if strings.HasPrefix(name, "boot/vmlinuz-") {
		return true
	}
	_, module, found := strings.Cut(name, "/kernel/")
	for _, dir := range moduleDirs {
		if found && strings.HasPrefix(module, dir) {
			return true
		}
	}
	return false
}

// order returns the files of the modules and of their dependencies, dependencies first, without modules that are built
// into the kernel.
func (k *Kernel) order(names []string) ([]string, error) {
	var files []string
	seen := make(map[string]bool)
	var add func(name string) error
	add = func(name string) error {
		name = strings.ReplaceAll(name, "-", "_")
		file, ok := k.modules[name]
		if seen[name] || !ok {
			return nil
		}
		seen[name] = true
		needs, err := depends(file)
		if err != nil {
			return fmt.Errorf("vm: reading module %s: %w", file, err)
		}
		for _, n := range needs {
			if err := add(n); err != nil {
				return err
			}
		}
		files = append(files, file)
		return nil
	}
	for _, n := range names {
		if err := add(n); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// depends reads "depends=a,b" from a module.
func depends(file string) ([]string, error) {
	f, err := elf.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	s := f.Section(".modinfo")
	if s == nil {
		return nil, errors.New("no .modinfo")
	}
	info, err := s.Data()
	if err != nil {
		return nil, err
	}
	for _, line := range strings.Split(string(info), "\x00") {
		if list, ok := strings.CutPrefix(line, "depends="); ok && list != "" {
			return strings.Split(list, ","), nil
		}
	}
	return nil, nil
}
