package main

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The command is told once, however many containers are; a second signal to the same one is passed on, and ends it at once.
func TestOneWishToEnd(t *testing.T) {
	for ways, want := range map[string]string{
		"own":                  "terminated",
		"wish":                 "terminated",
		"wish wish own":        "terminated",
		"own wish wish":        "terminated",
		"own own":              "terminated terminated",
		"wish own own":         "terminated terminated",
		"abort own":            "terminated",
		"abort wish own own":   "terminated terminated",
		"hangup wish own":      "hangup terminated",
		"wish hangup own":      "terminated hangup",
		"own hangup wish":      "terminated hangup",
		"abort abort own wish": "terminated terminated",
	} {
		var got []string
		g := gentle{c: &container{settings: settings{grace: time.Minute, command: []string{"train"}}}, hard: func(sig os.Signal) { got = append(got, sig.String()) }}
		for way := range strings.FieldsSeq(ways) {
			switch way {
			case "own":
				g.own(syscall.SIGTERM)
			case "hangup":
				g.own(syscall.SIGHUP)
			case "wish":
				g.wish(syscall.SIGTERM)
			case "abort":
				g.abort(syscall.SIGTERM)
			}
		}
		require.Equal(t, want, strings.Join(got, " "), ways)
	}
}
