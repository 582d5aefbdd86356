package main

import (
	"bytes"
	"crypto/md5" // #nosec G501 -- the format of md5sums, deb(5); no defence against anyone
	"fmt"
	"path"
	"slices"
	"strings"
)

const description = `init, ssh and rendezvous for the containers of a distributed job
 paiinit is the ENTRYPOINT of the containers of a training or simulation job, or
 stands in front of the job's command. The containers find each other, rank 0
 runs the command when all are present, and all end with the same exit status.`

// debianVersion returns a version that deb-version(7) allows: it begins with a digit.
func debianVersion(version string) string {
	v := strings.TrimPrefix(version, "v")
	if v == "" || v[0] < '0' || v[0] > '9' || v == version {
		return "0~" + version
	}
	return v
}

// debian returns the Debian package for an architecture, as deb(5) describes it.
func (r release) debian(arch string) ([]byte, error) {
	files := []file{{name: "usr/bin/paiinit", mode: 0o755, data: r.binaries[arch]}}
	for from, to := range packaged() {
		data := r.docs[from]
		if path.Ext(to) == ".gz" {
			var err error
			if data, err = compress(data); err != nil {
				return nil, err
			}
		}
		files = append(files, file{name: to, mode: 0o644, data: data})
	}
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.name, b.name) })
	var sums strings.Builder
	size := 0
	for _, f := range files {
		fmt.Fprintf(&sums, "%x  %s\n", md5.Sum(f.data), f.name) // #nosec G401 -- as above
		size += len(f.data)
	}
	control := fmt.Sprintf("Package: paiinit\nVersion: %s\nArchitecture: %s\n"+
		"Maintainer: paiinit <https://github.com/paiinit/paiinit>\nInstalled-Size: %d\n"+
		"Section: net\nPriority: optional\n"+
		"Homepage: https://github.com/paiinit/paiinit\nDescription: %s\n",
		debianVersion(r.version), arch, (size+1023)/1024, description)

	members := []file{{name: "debian-binary", data: []byte("2.0\n")}}
	for _, m := range []struct {
		name  string
		files []file
	}{
		{"control.tar.gz", []file{
			{name: "control", mode: 0o644, data: []byte(control)},
			{name: "md5sums", mode: 0o644, data: []byte(sums.String())},
		}},
		{"data.tar.gz", files},
	} {
		plain, err := tarball(m.files, r.date)
		if err != nil {
			return nil, err
		}
		data, err := compress(plain)
		if err != nil {
			return nil, err
		}
		members = append(members, file{name: m.name, data: data})
	}
	return r.ar(members), nil
}

// ar returns an archive in the format of ar(5).
func (r release) ar(members []file) []byte {
	var b bytes.Buffer
	b.WriteString("!<arch>\n")
	for _, m := range members {
		fmt.Fprintf(&b, "%-16s%-12d%-6d%-6d%-8s%-10d`\n", m.name, r.date.Unix(), 0, 0, "100644", len(m.data))
		b.Write(m.data)
		if len(m.data)%2 == 1 {
			b.WriteByte('\n')
		}
	}
	return b.Bytes()
}
