package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/paiinit/paiinit/cmdline"
	"github.com/paiinit/paiinit/envspec"
	"github.com/paiinit/paiinit/identify"
	"github.com/paiinit/paiinit/launch"
)

func envCommand(environ []string) *cli.Command {
	return &cli.Command{
		Name: "env", Usage: "print what was detected about the job, and from which variables",
		Description: cmdline.Examples("paiinit env --role worker --index 1", `eval "$(paiinit env --export)"`),
		Flags: append(jobFlags(),
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
			&cli.BoolFlag{Name: "export", Usage: "print the variables that a command would get, for a shell"}),
		Action: func(c *cli.Context) error { return showEnv(c, environ) },
	}
}

// showEnv prints what was detected about the job. Of a secret it prints only the variable or file that has it.
func showEnv(c *cli.Context, environ []string) error {
	job, _, err := identify.Job(c.Context, environ, givenJobFlags(c))
	if err != nil {
		return err
	}
	p := positionOf(job)
	if len(job.Peers) > 0 {
		p.Master = job.Peers[0].Host
	}
	vars := p.Variables()
	w := c.App.Writer
	switch {
	case c.Bool("json"):
		return printJSON(w, struct {
			envspec.Job
			// Export has the variables that a command would get, as far as they are known before the ranks connect.
			Export map[string]string `json:"export"`
		}{job, launch.Values(environ, vars)})
	case c.Bool("export"):
		for _, kv := range launch.Additions(environ, vars, "") {
			name, value, _ := strings.Cut(kv, "=")
			value = strings.ReplaceAll(value, "'", `'\''`) // for a POSIX shell
			if _, err := fmt.Fprintf(w, "export %s='%s'\n", name, value); err != nil {
				return err
			}
		}
		return nil
	}
	return job.WriteTable(w)
}

// known formats a number that is negative if it is unknown.
func known(n int, otherwise string) string {
	if n < 0 {
		return otherwise
	}
	return strconv.Itoa(n)
}
