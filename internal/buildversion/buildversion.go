// Package buildversion knows the version of a program whose build has not set it.
package buildversion

import (
	"runtime/debug"
	"strings"
)

// Unset is the version of a program that knows none.
const Unset = "devel"

// Of returns version if the build has set it, else the version of the main module, which `go install MODULE@VERSION`
// records (runtime/debug.BuildInfo), else Unset. Of the version of a commit without a tag, such as
// v0.1.1-0.20260102030405-0123456789ab+dirty (https://go.dev/ref/mod#pseudo-versions), it returns the last part: the
// whole would be longer than the version that ranks tell each other.
func Of(version string, read func() (*debug.BuildInfo, bool)) string {
	if version != Unset {
		return version
	}
	if info, ok := read(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		v := info.Main.Version
		if strings.Count(v, "-") > 1 {
			v = v[strings.LastIndexByte(v, '-')+1:]
		}
		return v
	}
	return Unset
}
