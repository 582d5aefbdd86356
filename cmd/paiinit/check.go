package main

import (
	"github.com/urfave/cli/v2"

	"github.com/paiinit/paiinit/cmdline"
	"github.com/paiinit/paiinit/identify"
)

func checkCommand(environ []string) *cli.Command {
	command := launching(environ, &cli.Command{
		Name: "check", Usage: "print what is wrong with this image and container, and what to do",
		Description: "Takes the flags of run. Exits with 0 if nothing fails, else with the status\nof run.\n\n" +
			cmdline.Examples("docker run IMAGE paiinit check", "paiinit check --exec all -- python3 train.py"),
	}, func(c *cli.Context, s settings) error {
		if err := s.checkArguments(); err != nil {
			return err
		}
		r := identify.Check(c.Context, identify.Launch{
			Environ: environ, Flags: s.job, Command: s.command, Dir: s.dir, SecretFile: s.secretFile,
			Insecure: s.insecure, StateDir: s.stateDir, LoginsIn: s.keysFile != "", ExecAll: s.exec == execAll,
			ImageSSH: s.ssh == sshImage, RDMA: s.rdma, Unknown: s.unknown, Status: statusOf,
		})
		if err := r.Write(c.App.Writer, c.Bool("json")); err != nil || r.Status == 0 {
			return err
		}
		return endStatus(r.Status)
	})
	command.ArgsUsage = "[--] [COMMAND [ARG...]]"
	command.Flags = append(cmdline.Hidden(command.Flags), &cli.BoolFlag{Name: "json", Usage: "print JSON"})
	return command
}
