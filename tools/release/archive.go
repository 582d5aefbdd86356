package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"path"
	"slices"
	"strings"
	"time"
)

// file is a file of a release or of an archive.
type file struct {
	name string
	mode int64
	data []byte
}

// tarball returns an archive of files and their directories, sorted by name, all owned by root and of one time.
func tarball(files []file, date time.Time) ([]byte, error) {
	modes := make(map[string]file)
	for _, f := range files {
		modes[f.name] = f
		for dir := path.Dir(f.name); dir != "."; dir = path.Dir(dir) {
			modes[dir+"/"] = file{name: dir + "/", mode: 0o755}
		}
	}
	names := make([]string, 0, len(modes))
	for name := range modes {
		names = append(names, name)
	}
	slices.Sort(names)
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range names {
		f := modes[name]
		h := &tar.Header{
			Name: f.name, Mode: f.mode, Size: int64(len(f.data)), ModTime: date, Typeflag: tar.TypeReg,
			Uname: "root", Gname: "root", Format: tar.FormatUSTAR,
		}
		if strings.HasSuffix(name, "/") {
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return b.Bytes(), err
}

// compress returns data as gzip writes it without a name and a time.
func compress(data []byte) ([]byte, error) {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	err = w.Close()
	return b.Bytes(), err
}
