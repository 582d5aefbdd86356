package cmdline

import (
	"strings"

	"github.com/urfave/cli/v2"
)

// App returns a program of these commands, whose help and usage errors look alike. It exits nowhere: errors return from
// Run.
func App(name string, commands []*cli.Command) *cli.App {
	for _, c := range commands {
		c.UsageText = strings.TrimSpace(name + " " + c.Name + " [FLAGS] " + c.ArgsUsage)
		c.Flags = append(c.Flags, Help())
		c.HideHelp, c.OnUsageError = true, OnUsageError
		c.Subcommands = []*cli.Command{} // with nil, the library takes the words for help topics
		for _, f := range c.Flags {
			if f, ok := f.(*cli.BoolFlag); ok {
				f.DisableDefaultText = true
			}
		}
	}
	return &cli.App{
		Name:                 name,
		HideHelp:             true,
		Flags:                []cli.Flag{Help()},
		EnableBashCompletion: true,
		ExitErrHandler:       func(*cli.Context, error) {},
		OnUsageError:         OnUsageError,
		CommandNotFound:      ShowHelp,
		Commands:             commands,
	}
}
