package main

import (
	"github.com/urfave/cli/v2"

	"github.com/paiinit/paiinit/cmdline"
	"github.com/paiinit/paiinit/install"
)

func installCommand() *cli.Command {
	return &cli.Command{
		Name: "install", Usage: "copy paiinit itself to DIR, for another container", ArgsUsage: "DIR",
		Description: "Replaces an older copy, also one that runs. Creates DIR, but not its parents.\n" +
			"To run the install of your image: paiinit -- install ...\n\n" +
			cmdline.Examples("paiinit install /shared  # in an init container", "paiinit install /usr/local/bin"),
		Action: func(c *cli.Context) error {
			if err := cmdline.OnlyWords(c, "DIR"); err != nil {
				return err
			}
			return install.Self(c.Args().First())
		},
	}
}
