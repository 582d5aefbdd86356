package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"paiinit": func() { os.Exit(start(os.Args, os.Environ())) },
	})
}

// The scripts run the real program: each starts its containers on the loopback address with ports of its own.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("PAIINIT_STATE_DIR", filepath.Join(e.WorkDir, "s")) // short: it holds a socket
			return nil
		},
	})
}
