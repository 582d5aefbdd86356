package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func newRelease() release {
	r := release{
		version: "v1.2.3", date: time.Unix(1700000000, 0).UTC(),
		binaries: map[string][]byte{"amd64": []byte("program for amd64"), "arm64": []byte("program for arm64!")},
		docs:     make(map[string][]byte),
	}
	for name := range packaged() {
		r.docs[name] = []byte("text of " + name)
	}
	return r
}

// unpack returns the files of an archive by name.
func unpack(t *testing.T, data []byte) map[string]string {
	t.Helper()
	files := make(map[string]string)
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		text, err := io.ReadAll(r)
		require.NoError(t, err)
		require.NotContains(t, files, h.Name)
		require.Equal(t, int64(1700000000), h.ModTime.Unix())
		require.Zero(t, h.Uid+h.Gid)
		files[h.Name] = string(text)
	}
}

func unzip(t *testing.T, data []byte) []byte {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(data))
	require.NoError(t, err)
	require.True(t, r.ModTime.IsZero())
	out, err := io.ReadAll(r)
	require.NoError(t, err)
	return out
}

func TestReleaseIsReproducible(t *testing.T) {
	first, err := newRelease().files()
	require.NoError(t, err)
	for range 5 {
		again, err := newRelease().files()
		require.NoError(t, err)
		require.Equal(t, first, again)
	}
	var names []string
	sums := string(first[len(first)-1].data)
	for _, f := range first[:len(first)-1] {
		names = append(names, f.name)
		require.Contains(t, sums, fmt.Sprintf("%x  %s\n", sha256.Sum256(f.data), f.name))
	}
	require.Equal(t, []string{
		"paiinit-v1.2.3-linux-amd64", "paiinit-v1.2.3-linux-arm64",
		"paiinit_1.2.3_amd64.deb", "paiinit_1.2.3_arm64.deb", "paiinit-v1.2.3-oci.tar", "LICENSE", "NOTICE",
	}, names)
	_, err = release{}.files()
	require.Error(t, err)
}

func TestDebianPackage(t *testing.T) {
	deb, err := newRelease().debian("arm64")
	require.NoError(t, err)
	members := make(map[string][]byte)
	rest, ok := bytes.CutPrefix(deb, []byte("!<arch>\n"))
	require.True(t, ok)
	for len(rest) > 0 {
		var size int
		require.Equal(t, "`\n", string(rest[58:60]))
		_, err := fmt.Sscan(string(rest[48:58]), &size)
		require.NoError(t, err)
		members[strings.TrimSpace(string(rest[:16]))] = rest[60 : 60+size]
		rest = rest[60+size+size%2:]
	}
	require.Equal(t, "2.0\n", string(members["debian-binary"]))
	control := unpack(t, unzip(t, members["control.tar.gz"]))
	require.Contains(t, control["control"], "\nVersion: 1.2.3\nArchitecture: arm64\n")
	data := unpack(t, unzip(t, members["data.tar.gz"]))
	require.Equal(t, "program for arm64!", data["usr/bin/paiinit"])
	require.Equal(t, "text of docs/paiinit.1", string(unzip(t, []byte(data["usr/share/man/man1/paiinit.1.gz"]))))
	require.Contains(t, data, "usr/share/doc/paiinit/")
	files := 0
	for name := range data {
		if !strings.HasSuffix(name, "/") {
			files++
			require.Contains(t, control["md5sums"], "  "+name+"\n")
		}
	}
	require.Equal(t, len(packaged())+1, files)
}

func TestDebianVersion(t *testing.T) {
	for version, want := range map[string]string{
		"v0.1.0": "0.1.0", "v0.1.0-3-gabcdef0": "0.1.0-3-gabcdef0",
		"abcdef0": "0~abcdef0", "1234567": "0~1234567", "v": "0~v",
	} {
		require.Equal(t, want, debianVersion(version))
	}
}

func TestImage(t *testing.T) {
	r := newRelease()
	image, err := r.image()
	require.NoError(t, err)
	files := unpack(t, image)
	read := func(d descriptor, v any) string {
		text, ok := files["blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:")]
		require.True(t, ok, d.Digest)
		require.Equal(t, d.Digest, fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(text))))
		require.Len(t, text, d.Size)
		if v != nil {
			require.NoError(t, json.Unmarshal([]byte(text), v))
		}
		return text
	}
	var top, index manifest
	require.NoError(t, json.Unmarshal([]byte(files["index.json"]), &top))
	read(top.Manifests[0], &index)
	found := make(map[string]string)
	for _, d := range index.Manifests {
		var m manifest
		read(d, &m)
		var about config
		read(*m.Config, &about)
		require.Equal(t, *d.Platform, about.platform)
		plain := unzip(t, []byte(read(m.Layers[0], nil)))
		require.Equal(t, fmt.Sprintf("sha256:%x", sha256.Sum256(plain)), about.RootFS["diff_ids"].([]any)[0])
		layer := unpack(t, plain)
		require.Equal(t, []string{"paiinit"}, slices.Collect(maps.Keys(layer)))
		found[d.Platform.Architecture] = layer["paiinit"]
	}
	require.Equal(t, map[string]string{"amd64": "program for amd64", "arm64": "program for arm64!"}, found)
	var docker []struct {
		Config string
		Layers []string
	}
	require.NoError(t, json.Unmarshal([]byte(files["manifest.json"]), &docker))
	require.Contains(t, files, docker[0].Config)
	require.Contains(t, files, docker[0].Layers[0])
}
