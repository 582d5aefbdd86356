// Package buildversion knows the version of a program whose build has not set it.
package buildversion

import "runtime/debug"

// Unset is the version of a program that knows none.
const Unset = "devel"

// Of returns version if the build has set it, else the version of the main module, which `go install MODULE@VERSION`
// records (runtime/debug.BuildInfo), else Unset.
func Of(version string, read func() (*debug.BuildInfo, bool)) string {
	if version != Unset {
		return version
	}
	if info, ok := read(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return Unset
}
