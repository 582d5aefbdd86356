package inspect

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// libraries returns the communication libraries that the dynamic loader finds, and those of Python packages, which
// programs find by their own search path.
func (s Source) libraries() (found []Fact) {
	search := strings.Split(valueOf(s.Environ, "LD_LIBRARY_PATH"), ":")
	search = search[:min(len(search), maxSearched)]
	cache := parseCache(s.cache())
	for _, l := range []struct{ fact, file string }{
		{"libmpi", "libmpi.so.40"}, {"libmpi", "libmpi.so.12"},
		{"libnccl", "libnccl.so.2"}, {"librccl", "librccl.so.1"},
	} {
		if slices.ContainsFunc(found, func(f Fact) bool { return f.Name == l.fact }) {
			continue
		}
		var candidates []string
		for _, dir := range search {
			if path.IsAbs(dir) {
				candidates = append(candidates, path.Join(dir, l.file))
			}
		}
		if at := cache[l.file]; at != "" {
			candidates = append(candidates, at)
		}
		for _, dir := range []string{"/lib", "/usr/lib", "/lib64", "/usr/lib64", "/usr/local/lib", "/opt/conda/lib"} {
			candidates = append(candidates, path.Join(dir, l.file))
		}
		if value := s.firstLibrary(candidates); value != "" {
			found = append(found, Fact{l.fact, value})
		}
	}
	if value := s.firstLibrary(s.packaged("nvidia/nccl/lib/libnccl.so.2")); value != "" {
		found = append(found, Fact{"libnccl of Python", value})
	}
	return found
}

// valueOf returns the first value of a variable, as getenv does.
func valueOf(environ []string, name string) string {
	for _, kv := range environ {
		if key, value, _ := strings.Cut(kv, "="); key == name {
			return value
		}
	}
	return ""
}

// packaged returns the paths at which a Python package installs a file. No directory is listed: those of large images
// have thousands of entries.
func (s Source) packaged(file string) (candidates []string) {
	roots := []string{
		valueOf(s.Environ, "VIRTUAL_ENV"), valueOf(s.Environ, "CONDA_PREFIX"), "/opt/conda", "/usr/local", "/usr",
	}
	for _, root := range roots {
		if !path.IsAbs(root) {
			continue
		}
		for minor := 14; minor >= 8; minor-- {
			for _, packages := range []string{"site-packages", "dist-packages"} {
				candidates = append(candidates, path.Join(root, fmt.Sprintf("lib/python3.%d", minor), packages, file))
			}
		}
	}
	return candidates
}

// firstLibrary describes the first file that exists: its version by the name of the file that it links to, its size
// and its directory.
func (s Source) firstLibrary(candidates []string) string {
	for _, file := range candidates {
		name := strings.TrimPrefix(file, "/")
		info, err := fs.Stat(s.Files, name)
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		version := path.Base(file)
		if target, err := fs.ReadLink(s.Files, name); err == nil {
			version = path.Base(target)
		}
		if _, number, ok := strings.Cut(version, ".so."); ok && strings.Contains(number, ".") {
			version = number // libnccl.so.2.18.3
		}
		return fmt.Sprintf("%s, %d bytes in %s", version, info.Size(), path.Dir(file))
	}
	return ""
}

// cache returns the contents of ld.so.cache, nil if there is none.
func (s Source) cache() []byte {
	b, _ := readUpTo(s.Files, "etc/ld.so.cache", maxCache)
	return b
}

// parseCache returns the paths in a cache of glibc's loader, by the names of the libraries. The first entry of a name
// counts, as for the loader (sysdeps/generic/dl-cache.h of glibc).
func parseCache(b []byte) map[string]string {
	const magic, header, entry = "glibc-ld.so.cache1.1", 48, 24
	found := make(map[string]string)
	start := bytes.Index(b, []byte(magic)) // an older cache may come first
	if start < 0 || len(b)-start < header {
		return found
	}
	b = b[start:]
	text := func(offset uint32) string {
		if uint64(offset) >= uint64(len(b)) {
			return ""
		}
		name, _, _ := bytes.Cut(b[offset:min(len(b), int(offset)+512)], []byte{0})
		return string(name)
	}
	entries := b[header:]
	for n := binary.NativeEndian.Uint32(b[20:]); n > 0 && len(entries) >= entry; n-- {
		name, at := text(binary.NativeEndian.Uint32(entries[4:])), text(binary.NativeEndian.Uint32(entries[8:]))
		if strings.HasPrefix(name, "lib") && found[name] == "" && path.IsAbs(at) {
			found[name] = at
		}
		entries = entries[entry:]
	}
	return found
}
