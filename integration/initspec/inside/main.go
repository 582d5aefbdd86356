// Command inside runs in the containers of the init's specification tests, beside a shell, and sets up their
// namespaces.
//
//	inside stage PLAN        set up the namespaces of this process, and execute the program
//	inside trainer           print ready, and save work on SIGTERM with the help of two workers
//	inside signals           print ready, then the number of each signal that arrives, for ever
//	inside commands N        have paiinit run N commands, eight at a time; print how many had a wrong status
//	inside orphans N         leave N processes behind that end at once; print how many zombies remain
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/paiinit/paiinit/integration/initspec/stage"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "inside: %v\n", err)
		os.Exit(99)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 2 && args[0] == "stage":
		var p stage.Plan
		if err := json.Unmarshal([]byte(args[1]), &p); err != nil {
			return fmt.Errorf("reading the plan: %w", err)
		}
		return p.Become()
	case len(args) == 1 && args[0] == "trainer":
		return trainer()
	case len(args) == 1 && args[0] == "worker":
		return worker()
	case len(args) == 1 && args[0] == "signals":
		return signals()
	case len(args) == 2 && args[0] == "commands":
		n, err := strconv.Atoi(args[1])
		if err != nil {
			return err
		}
		return commands(n)
	case len(args) == 2 && args[0] == "orphans":
		n, err := strconv.Atoi(args[1])
		if err != nil {
			return err
		}
		return orphans(n)
	}
	return fmt.Errorf("unknown arguments: %q", args)
}

// signals prints signals in the order of arrival. Real-time signals begin at 35, because the C library reserves 32 to
// 34.
func signals() error {
	all := []os.Signal{
		syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM,
		syscall.SIGTERM, syscall.SIGCONT, syscall.SIGWINCH, syscall.SIGPWR, syscall.SIGXCPU, syscall.SIGTSTP,
		syscall.SIGSEGV, syscall.SIGBUS, syscall.SIGILL, syscall.SIGFPE, syscall.SIGTRAP, syscall.SIGSYS,
		syscall.SIGSTKFLT,
	}
	for n := 35; n <= 64; n++ {
		all = append(all, syscall.Signal(n))
	}
	c := make(chan os.Signal, 64)
	signal.Notify(c, all...)
	if _, err := fmt.Fprintln(os.Stdout, "ready"); err != nil {
		return err
	}
	for s := range c {
		if _, err := fmt.Fprintf(os.Stdout, "signal %d\n", int(s.(syscall.Signal))); err != nil {
			return err
		}
	}
	return nil
}
