package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/paiinit/paiinit/cmdline"
	"github.com/paiinit/paiinit/early"
	"github.com/paiinit/paiinit/hostfile"
	"github.com/paiinit/paiinit/localapi"
	"github.com/paiinit/paiinit/rendezvous"
	"github.com/paiinit/paiinit/statedir"
)

// questions returns the commands that query the paiinit running in this container.
func questions(environ []string) []*cli.Command {
	type asks = func(*cli.Context, localapi.Client) error // and prints the answer
	command := func(name, args, usage, examples string, do asks, flags ...cli.Flag) *cli.Command {
		return &cli.Command{
			Name: name, Usage: usage, ArgsUsage: args, Description: cmdline.Examples(strings.Split(examples, "\n")...),
			Flags: append(flags, &cli.StringFlag{
				Name: "state-dir", Usage: "`DIR`: state directory of the paiinit to ask (or PAIINIT_STATE_DIR)",
			}),
			Action: func(c *cli.Context) error {
				if err := cmdline.OnlyWords(c, args); err != nil {
					return err
				}
				dir, err := chooseDir(environ, c.String("state-dir"))
				if err != nil {
					return err
				}
				return explain(do(c, clientIn(dir)))
			},
		}
	}
	timeout := &cli.DurationFlag{Name: "timeout", Usage: "`TIME`: give up after this time with status 75",
		DefaultText: "forever", Action: cmdline.NotNegative("timeout")}
	formats := []string{
		string(hostfile.OpenMPI), string(hostfile.Hydra), string(hostfile.Horovod), string(hostfile.DeepSpeed),
	}
	return []*cli.Command{
		command("status", "", "print which ranks are present, which are missing, and why",
			"paiinit status --watch\nkubectl exec POD -- paiinit status", showStatus,
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
			&cli.BoolFlag{Name: "drift", Usage: "print what differs between the ranks; rank 0 knows it"},
			&cli.BoolFlag{Name: "watch", Usage: "show every change until the job ends"},
			&cli.BoolFlag{Name: "all", Aliases: []string{"v"}, Usage: "also print one row for each rank"},
			cmdline.Optional(new(string), "timeline", "print what each rank did, and when; "+
				"`[=trace]`: JSON for ui.perfetto.dev", "text", "trace"),
			&cli.StringFlag{Name: "html", Usage: "write a page about ranks and timeline to `FILE`"},
			&cli.BoolFlag{Name: "ready", Usage: "exit with 0 if all ranks run their command, else 1, and say why"},
			&cli.BoolFlag{Name: "live", Usage: "exit with 0 if paiinit answers, else 1"}),
		command("wait", "", "wait until all ranks are present",
			"paiinit wait && ./start.sh\npaiinit wait --timeout 5m", awaitAll, timeout),
		command("barrier", "NAME", "wait until every rank has called it with the same NAME",
			"paiinit barrier data-is-ready\npaiinit barrier saved --timeout 90s", awaitBarrier, timeout),
		command("hosts", "", "print name:slots of the live ranks, for horovodrun",
			"paiinit hosts  # in the script of --host-discovery-script\npaiinit hosts | wc -l", showHosts),
		command("hostfile", "", "print the host list in the format of a launcher",
			"paiinit hostfile >hosts\npaiinit hostfile --format hydra", showHostfile,
			cmdline.Choice(new(string), "format", "NAME", strings.Join(formats, ", "), formats...)),
	}
}

// clientIn returns a client for the paiinit that owns a state directory.
func clientIn(dir string) localapi.Client {
	return localapi.Client{Socket: filepath.Join(dir, statedir.StatusSocket)}
}

// advisedError is an error with what to do about it.
type advisedError struct {
	error
	advice string
}

func (e *advisedError) Unwrap() error { return e.error }

// explain adds advice to the error about a paiinit that cannot be reached.
func explain(err error) error {
	dial, ok := errors.AsType[*localapi.DialError](err)
	switch {
	case !ok:
		return err
	case errors.Is(err, os.ErrPermission):
		return &advisedError{dial.Err, "only root and the user that runs paiinit may ask it"}
	}
	return &advisedError{fmt.Errorf("paiinit is not running here: no answer on %s", dial.Socket),
		"if it has another state directory, use --state-dir or PAIINIT_STATE_DIR"}
}

func awaitAll(c *cli.Context, ask localapi.Client) error {
	return ask.Wait(c.Context, c.Duration("timeout"))
}

func awaitBarrier(c *cli.Context, ask localapi.Client) error {
	name := c.Args().First()
	if name == "" || len(name) > rendezvous.MaxName {
		return cmdline.Errorf("the name of a barrier has 1 to %d bytes, not %d", rendezvous.MaxName, len(name))
	}
	return ask.Barrier(c.Context, name, c.Duration("timeout"))
}

func showHosts(c *cli.Context, ask localapi.Client) error {
	hosts, err := ask.Hosts(c.Context)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	for _, h := range hosts {
		fmt.Fprintf(&b, "%s:%d\n", h.Name, h.Slots)
	}
	_, err = b.WriteTo(c.App.Writer)
	return err
}

func showHostfile(c *cli.Context, ask localapi.Client) error {
	hosts, err := ask.Hostfile(c.Context)
	if err != nil {
		return err
	}
	var list []hostfile.Host
	for _, h := range hosts {
		list = append(list, hostfile.Host(h))
	}
	return hostfile.Write(c.App.Writer, hostfile.Dialect(c.String("format")), list)
}

func showStatus(c *cli.Context, ask localapi.Client) error {
	if c.Bool("ready") || c.Bool("live") {
		return showProbe(c, ask)
	}
	if c.String("timeline") != "" || c.String("html") != "" {
		return showTimeline(c, ask)
	}
	out, asJSON, watch := c.App.Writer, c.Bool("json"), c.Bool("watch")
	if c.Bool("drift") {
		return ask.PrintDrift(c.Context, out, asJSON)
	}
	view := localapi.View{Out: out, JSON: asJSON, Watch: watch, Layout: localapi.Layout{
		All: c.Bool("all"), Display: rendezvous.Display, Fold: rendezvous.FoldNames,
	}}
	if watch && !asJSON && early.IsTerminal(1) && os.Getenv("TERM") != "dumb" {
		view.Size = localapi.TerminalSize
	}
	return view.Print(ask.Changes(c.Context, view.Size != nil), func(err error) { complain("%v", explain(err)) })
}
