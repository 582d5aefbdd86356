package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/paiinit/paiinit/cmdline"
	"github.com/paiinit/paiinit/early"
)

// ask runs the commands that only tell something, on standard output, without being an init.
func ask(args, environ []string) int {
	args = slices.Clone(args)
	app := newApp(environ, nil)
	command := early.CommandOf(args)
	switch command {
	case "version":
		args[1] = "version"
	case "help":
		if len(args) > 2 && !slices.Contains(append(early.Commands(), "run"), args[2]) {
			complain("there is no command %q\nhint: %s", args[2], cmp.Or(didYouMean(args[2]), "see paiinit --help"))
			return statusUsage
		}
		args[1] = "--help"
	case "complete":
		if len(args) > 2 && !slices.Contains(early.Commands(), args[1]) {
			args = cmdline.RunArgs(args)
		}
	case "each", "check", sftpServer:
	default:
		args = append(args[:2:2], cmdline.FlagsFirst(app.Command(command).Flags, args[2:])...)
	}
	err := cmdline.Run(context.Background(), app, args)
	if err == nil {
		return 0
	}
	if status := endStatus(0); errors.As(err, &status) {
		return int(status)
	}
	complainOf(err, command, nil)
	return statusOf(err)
}

// mistyped returns the command of this program that a word most likely means, or "" if it resembles none.
func mistyped(word string) string {
	hidden := func(name string) bool { return strings.Contains(name, "-") } // flags and sftp-server
	commands := slices.DeleteFunc(early.Commands(), hidden)
	return cmdline.Closest(word, append([]string{"run"}, commands...))
}

func showVersion(c *cli.Context) error {
	_, err := fmt.Fprintf(c.App.Writer, "paiinit %s %s %s/%s\n",
		version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
