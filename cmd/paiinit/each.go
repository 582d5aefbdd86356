package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/urfave/cli/v2"

	"github.com/paiinit/paiinit/cmdline"
	"github.com/paiinit/paiinit/hosts"
	"github.com/paiinit/paiinit/rendezvous"
	"github.com/paiinit/paiinit/rsh"
	"github.com/paiinit/paiinit/statedir"
)

// eachAtOnce is the number of ranks on which `paiinit each` runs the command at the same time.
const eachAtOnce = 64

// endStatus is the exit status of a command that has already reported its errors.
type endStatus int

func (s endStatus) Error() string { return fmt.Sprintf("status %d", int(s)) }

func eachCommand(environ []string) *cli.Command {
	return &cli.Command{
		Name:      "each",
		Usage:     "run COMMAND on every rank, exit with the highest status",
		ArgsUsage: "[--] COMMAND [ARG...]",
		Description: "A COMMAND of one word is run by the shell, several words as they are.\n" +
			"Each line of output has its rank in front. Signals are forwarded to every rank.\n\n" +
			cmdline.Examples("paiinit each nvidia-smi -L", "paiinit each --ranks 0,3-5 'df -h | grep shm'"),
		Flags: []cli.Flag{
			&cli.StringFlag{
				Name: "ranks", Usage: "`LIST` of ranks and host names: 0,3-5,worker-7", DefaultText: "all",
			},
		},
		Action: func(c *cli.Context) error {
			dir, err := chooseDir(environ, "")
			if err != nil {
				return err
			}
			return explain(each(c.Context, dir, c.String("ranks"), c.Args().Slice()))
		},
	}
}

// each runs a command on the ranks of a list.
func each(ctx context.Context, dir, list string, words []string) error {
	if len(words) == 0 {
		return cmdline.Errorf("each needs a COMMAND")
	}
	names, err := rankNames(ctx, dir)
	if err != nil {
		return err
	}
	ranks, err := hosts.ParseRanks(list, names)
	if err != nil {
		return cmdline.Errorf("--ranks: %w", err)
	}
	titles := sync.OnceValue(func() map[int]string { return clientIn(dir).Titles(ctx, rendezvous.Display) })
	title := func(h rsh.Numbered) string { return cmp.Or(titles()[h.Number], h.Host) }
	chosen := make([]rsh.Numbered, len(ranks))
	for i, rank := range ranks {
		chosen[i] = rsh.Numbered{Number: rank, Host: names[rank][0]}
	}
	caught := make(chan os.Signal, 16)
	signal.Notify(caught,
		syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	defer signal.Stop(caught)
	e := &rsh.Each{
		Socket: filepath.Join(dir, statedir.AgentSocket), AtOnce: eachAtOnce, Stdout: os.Stdout, Stderr: os.Stderr,
		Ended: func(h rsh.Numbered, status int, err error) {
			if err != nil {
				complain("rank %d, %s: %v", h.Number, title(h), err)
			} else if status != 0 {
				complain("rank %d, %s, ended with status %d", h.Number, title(h), status)
			}
		},
	}
	if status := e.Run(ctx, chosen, rsh.Quote(words), caught); status != 0 {
		return endStatus(status)
	}
	return nil
}

// absentError is an error after which a retry may succeed.
type absentError struct{ error }
