package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"

	"github.com/urfave/cli/v3"
)

// ask runs the commands that only tell something, on standard output, without being an init.
func ask(args, environ []string) int {
	args = slices.Clone(args)
	switch commandOf(args) {
	case "version":
		args[1] = "version"
	case "help":
		args[1] = "--help"
	case "each":
		args = append(args[:2:2], apart(eachFlags(), args[2:])...)
	}
	err := newApp(environ, nil).Run(context.Background(), args)
	if err == nil {
		return 0
	}
	if status := endStatus(0); errors.As(err, &status) {
		return int(status)
	}
	complain("error: %v", err)
	if h := hint(err, nil); h != "" {
		complain("hint: %s", h)
	}
	return statusOf(err)
}

func showVersion(_ context.Context, c *cli.Command) error {
	_, err := fmt.Fprintf(c.Root().Writer, "paiinit %s %s %s/%s\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
