package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

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
	command := func(name, args, usage string, do asks, flags ...cli.Flag) *cli.Command {
		return &cli.Command{
			Name: name, Usage: usage, ArgsUsage: args,
			Flags: append(flags, &cli.StringFlag{
				Name: "state-dir", Usage: "state directory of the paiinit to ask [PAIINIT_STATE_DIR=`DIR`]",
			}),
			Action: func(c *cli.Context) error {
				if c.NArg() != len(strings.Fields(args)) {
					return cmdline.Errorf("usage: paiinit %s", strings.TrimSpace(name+" "+args+" [FLAGS]"))
				}
				dir, err := chooseDir(environ, c.String("state-dir"))
				if err != nil {
					return err
				}
				return explain(do(c, clientIn(dir)))
			},
		}
	}
	timeout := &cli.DurationFlag{Name: "timeout", Usage: "`TIME` to wait, such as 90s or 10m, before exiting with 75",
		DefaultText: "forever", Action: cmdline.NotNegative("timeout")}
	format := hostfile.OpenMPI
	formats := []string{
		string(hostfile.OpenMPI), string(hostfile.Hydra), string(hostfile.Horovod), string(hostfile.DeepSpeed),
	}
	return []*cli.Command{
		command("status", "", "print which ranks are present, which are missing, and why", showStatus,
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
			&cli.BoolFlag{Name: "watch", Usage: "show every change until the job ends"},
			&cli.BoolFlag{Name: "all", Aliases: []string{"v"}, Usage: "also print one row for each rank"}),
		command("wait", "", "wait until all ranks are present", awaitAll, timeout),
		command("barrier", "NAME", "wait until every rank has called it with the same NAME", awaitBarrier, timeout),
		command("hosts", "", "print name:slots of the live ranks, for horovodrun --host-discovery-script", showHosts),
		command("hostfile", "", "print the host list", showHostfile,
			&cli.GenericFlag{
				Name: "format", Usage: "`NAME` of the launcher that reads it: " + strings.Join(formats, ", "),
				Value: &format,
			}),
	}
}

// clientIn returns a client for the paiinit that owns a state directory.
func clientIn(dir string) localapi.Client {
	return localapi.Client{Socket: filepath.Join(dir, statedir.StatusSocket)}
}

// explain adds advice to the error about a paiinit that cannot be reached.
func explain(err error) error {
	dial, ok := errors.AsType[*localapi.DialError](err)
	switch {
	case !ok:
		return err
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%w; only root and the user that runs paiinit may ask it", dial.Err)
	}
	return fmt.Errorf("paiinit is not running here: no answer on %s; "+
		"if it has another state directory, use --state-dir or PAIINIT_STATE_DIR", dial.Socket)
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
	out, asJSON, watch := c.App.Writer, c.Bool("json"), c.Bool("watch")
	view := localapi.View{Out: out, Layout: localapi.Layout{
		All: c.Bool("all"), Display: rendezvous.Display, Fold: rendezvous.FoldNames,
	}}
	if watch && !asJSON && early.IsTerminal(1) && os.Getenv("TERM") != "dumb" {
		view.Size = localapi.TerminalSize
	}
	first := true
	for s, err := range ask.Changes(c.Context, view.Size != nil) {
		switch {
		case err != nil && first:
			return err
		case err != nil:
			complain("%v", explain(err))
			return nil // paiinit has answered before, so the job has ended
		case asJSON && watch:
			err = json.NewEncoder(out).Encode(s) // one line for each change
		case asJSON:
			err = printJSON(out, s)
		default:
			err = view.Show(s, time.Now())
		}
		if err != nil || !watch {
			return err
		}
		first = false
	}
	return nil
}
