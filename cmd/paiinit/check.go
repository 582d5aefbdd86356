package main

import (
	"context"
	"io"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/paiinit/paiinit/cmdline"
	"github.com/paiinit/paiinit/inspect"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/netif"
	"github.com/paiinit/paiinit/rdma"
	"github.com/paiinit/paiinit/statedir"
)

func checkCommand(environ []string) *cli.Command {
	command := launching(environ, &cli.Command{
		Name: "check", Usage: "examine this image and container without launching: OK, WARN or FAIL, and what to do",
		Description: "Takes the flags of run. Exits with 0 if nothing fails, else with the status of paiinit run.",
	}, func(c *cli.Context, s settings) error {
		r := checkOf(s, environ).Run(c.Context)
		write := r.WriteTable
		if c.Bool("json") {
			write = func(w io.Writer) error { return printJSON(w, r) }
		}
		if err := write(c.App.Writer); err != nil || r.Status == 0 {
			return err
		}
		return endStatus(r.Status)
	})
	command.ArgsUsage = "[--] [COMMAND [ARG...]]"
	command.Flags = append(cmdline.Hidden(command.Flags), &cli.BoolFlag{Name: "json", Usage: "print JSON"})
	return command
}

// checkOf returns the check of this container. It raises limits as a launch does.
func checkOf(s settings, environ []string) inspect.Check {
	secret := launch.Value(environ, secretVariable)
	environ = launch.Without(environ, []launch.Var{{Name: secretVariable}})
	_ = launch.Limits() // the check reports low limits
	return inspect.Check{
		Root: os.DirFS("/"), Environ: environ, Command: s.command, Dir: s.dir, System: inspect.ThisSystem(),
		ExecAll: s.exec == execAll, LoginsIn: s.keysFile != "", Insecure: s.insecure, ImageSSH: s.ssh == sshImage,
		RDMA: s.rdma, StateDir: s.stateDir, Running: statedir.RunningHere(s.stateDir),
		Unknown: unknownVariables(environ), Launchers: launch.Unversioned(), Place: statedir.Place,
		Look: launch.Look, Identify: launch.Identify, Resolve: netif.Resolver{}.LookupHost,
		TryPort: netif.TryPort, Greeting: netif.Greeting, Status: statusOf,
		Fabric: func() inspect.Fabric {
			r := rdma.Probe(rdma.At("/"))
			sum, worst := r.Summary(), r.Worst()
			return inspect.Fabric{Summary: sum.String(), Devices: len(r.Devices), Usable: sum.Usable(),
				Problem: worst.What, Fix: worst.Fix, PeerMemory: r.PeerMemory}
		},
		Job: func(ctx context.Context) (inspect.Job, error) {
			j, _, err := readJob(ctx, environ, s.job)
			return inspect.Job{
				System: j.System, Alias: j.Alias, Rank: j.Rank, Size: j.Size, Slots: j.Slots, GPUs: j.GPUs, CPUs: j.CPUs,
				Port: j.Port, Hosts: j.Hosts(), Warnings: j.Warnings,
				Secret: func() (source string, length int, err error) {
					_, source, length, err = findKeys(s.secretFile, []byte(secret), &j)
					if err == nil && source == "" && s.insecure {
						_, err = j.Addresses()
					}
					return source, length, err
				},
			}, err
		},
	}
}
