package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/paiinit/paiinit/integration/sample"
	"github.com/paiinit/paiinit/integration/testnetwork"
	"github.com/paiinit/paiinit/integration/testsignals"
)

func TestMain(m *testing.M) {
	program := func() { os.Exit(start(os.Args, os.Environ())) }
	programs := map[string]func(){"paiinit": program, "ssh": program, "horovodrun": program, "told": told}
	if programs[filepath.Base(os.Args[0])] == nil {
		testnetwork.Own() // the scripts use fixed ports
	}
	testscript.Main(scripts{m}, programs)
}

// scripts runs the tests. testscript runs the programs that the scripts call.
type scripts struct{ tests *testing.M }

func (s scripts) Run() int {
	testsignals.Default()
	if err := sample.WaitTogether(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return s.tests.Run()
}

// script is the test of a script.
type script struct {
	testscript.T
	name string
}

func (s script) Name() string { return s.name }

// told runs a script's background command and prints its status on stdout. It kills the command when it is interrupted
// or killed itself: a script that fails interrupts its background processes, then waits until all have closed their
// output pipes.
func told() {
	runtime.LockOSThread() // the parent death signal is sent when this thread ends
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt)
	command := exec.Command(os.Args[1], os.Args[2:]...)
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "told:", err)
		os.Exit(1)
	}
	go func() {
		<-interrupted
		_ = command.Process.Kill()
	}()
	_ = command.Wait() // ProcessState has the same information
	status := command.ProcessState.ExitCode()
	if by := command.ProcessState.Sys().(syscall.WaitStatus); by.Signaled() {
		status = 128 + int(by.Signal())
	}
	fmt.Println("status", status)
	os.Exit(0)
}

// The scripts run the real program. Each script starts its containers on the loopback address with its own ports.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		Cmds:                map[string]func(*testscript.TestScript, bool, []string){"screen": screen},
		Condition: func(name string) (bool, error) {
			if name != "required" {
				return false, fmt.Errorf("unknown condition %q", name)
			}
			return os.Getenv("PAIINIT_TEST_REQUIRE") != "", nil
		},
		Setup: func(e *testscript.Env) error {
			sample.OneIn(script{e.T(), filepath.Base(e.WorkDir)}, 3)
			// Short, because the path of a socket in it has at most 107 bytes (unix(7)).
			e.Setenv("PAIINIT_LOG_FORMAT", "logfmt")
			e.Setenv("PAIINIT_STATE_DIR", filepath.Join(e.WorkDir, "s"))
			docs, err := filepath.Abs("../../docs")
			e.Setenv("DOCS", docs)
			return err
		},
	})
}
