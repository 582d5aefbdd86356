// Command release writes the files of a release: binaries, Debian packages, an OCI image, and their checksums. The same
// binaries, version and date give the same bytes.
package main

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// release is what the files of a release are made of.
type release struct {
	version  string // the tag, v0.1.0
	date     time.Time
	binaries map[string][]byte // by architecture, as Go names it
	docs     map[string][]byte // the repository's files that packages contain, by path
}

// architectures are those of the binaries, in the order of the image's index.
func architectures() []string { return []string{"amd64", "arm64"} }

// packaged are the repository's files that a Debian package contains, and where.
func packaged() map[string]string {
	return map[string]string{
		"docs/paiinit.1":           "usr/share/man/man1/paiinit.1.gz",
		"completions/paiinit.bash": "usr/share/bash-completion/completions/paiinit",
		"completions/paiinit.zsh":  "usr/share/zsh/vendor-completions/_paiinit",
		"completions/paiinit.fish": "usr/share/fish/vendor_completions.d/paiinit.fish",
		"LICENSE":                  "usr/share/doc/paiinit/copyright",
		"NOTICE":                   "usr/share/doc/paiinit/NOTICE",
	}
}

func main() {
	version := flag.String("version", "", "the release's `TAG`")
	date := flag.Int64("date", 0, "`SECONDS` since 1970: the time of all files")
	from := flag.String("binaries", "bin", "`DIR` with paiinit-amd64 and paiinit-arm64")
	to := flag.String("out", "dist", "`DIR` to write to")
	flag.Parse()
	r := release{
		version: *version, date: time.Unix(*date, 0).UTC(),
		binaries: make(map[string][]byte), docs: make(map[string][]byte),
	}
	if err := run(r, *from, *to); err != nil {
		log.Fatalln("release:", err)
	}
}

func run(r release, from, to string) (err error) {
	for _, arch := range architectures() {
		if r.binaries[arch], err = os.ReadFile(filepath.Join(from, "paiinit-"+arch)); err != nil {
			return err
		}
	}
	for name := range packaged() {
		if r.docs[name], err = os.ReadFile(name); err != nil {
			return err
		}
	}
	files, err := r.files()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(to, f.name), f.data, os.FileMode(f.mode)); err != nil {
			return err
		}
	}
	return nil
}

// files returns the files of the release. The last has the checksums of the others, as sha256sum writes them.
func (r release) files() (files []file, err error) {
	if r.version == "" {
		return nil, fmt.Errorf("a release needs a version")
	}
	for _, arch := range architectures() {
		name := fmt.Sprintf("paiinit-%s-linux-%s", r.version, arch)
		files = append(files, file{name: name, mode: 0o755, data: r.binaries[arch]})
	}
	for _, arch := range architectures() {
		data, err := r.debian(arch)
		if err != nil {
			return nil, err
		}
		name := fmt.Sprintf("paiinit_%s_%s.deb", debianVersion(r.version), arch)
		files = append(files, file{name: name, mode: 0o644, data: data})
	}
	image, err := r.image()
	if err != nil {
		return nil, err
	}
	files = append(files, file{name: fmt.Sprintf("paiinit-%s-oci.tar", r.version), mode: 0o644, data: image})
	for _, name := range []string{"LICENSE", "NOTICE"} { // which must accompany the binaries
		files = append(files, file{name: name, mode: 0o644, data: r.docs[name]})
	}
	var sums strings.Builder
	for _, f := range files {
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(f.data), f.name)
	}
	return append(files, file{name: "SHA256SUMS", mode: 0o644, data: []byte(sums.String())}), nil
}
