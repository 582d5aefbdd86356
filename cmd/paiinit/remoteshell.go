package main

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/paiinit/paiinit/rsh"
)

// remoteShell is `paiinit rsh`: what mpirun calls for each host. The paiinit of this container does the work.
func remoteShell(args, environ []string) int {
	words := args[1:]
	if name := filepath.Base(args[0]); name != "ssh" && name != "rsh" {
		words = args[2:]
	}
	inv, err := rsh.Parse(words)
	if err != nil {
		complain("%v", err)
		return statusUsage
	}
	caught := make(chan os.Signal, 16)
	signal.Notify(caught, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM)
	defer signal.Stop(caught)
	return rsh.Run(context.Background(), agentSocket(environ), inv, os.Stdin, os.Stdout, os.Stderr, caught)
}

// agentSocket is where the paiinit of this container listens: as it told the job, or where it would by default, for a
// person who came in with docker exec.
func agentSocket(environ []string) string {
	if s := lookup(environ, "PAIINIT_AGENT"); s != "" {
		return s
	}
	dirs := stateDirs()
	if d := lookup(environ, "PAIINIT_STATE_DIR"); d != "" {
		dirs = []string{d}
	}
	for _, d := range dirs {
		if _, err := os.Stat(filepath.Join(d, socketName)); err == nil {
			return filepath.Join(d, socketName)
		}
	}
	return filepath.Join(dirs[0], socketName)
}
