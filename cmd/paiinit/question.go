package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/paiinit/paiinit/hostfile"
	"github.com/paiinit/paiinit/localapi"
	"github.com/paiinit/paiinit/rendezvous"
	"github.com/paiinit/paiinit/statedir"
)

// questions are the commands that ask the paiinit that runs in this container.
func questions(environ []string) []*cli.Command {
	command := func(name, args, usage string, do askFunc, flags ...cli.Flag) *cli.Command {
		return &cli.Command{
			Name: name, Usage: usage, ArgsUsage: args, HideHelpCommand: true,
			Flags:        append(flags, &cli.StringFlag{Name: "state-dir", Usage: "`DIR` of the paiinit to ask, if it was given one (PAIINIT_STATE_DIR)"}),
			OnUsageError: func(_ context.Context, _ *cli.Command, err error, _ bool) error { return &usageError{err} },
			Action: func(ctx context.Context, c *cli.Command) error {
				want := 0
				if args != "" {
					want = 1
				}
				if c.NArg() != want {
					return &usageError{fmt.Errorf("usage: paiinit %s", strings.TrimSpace(name+" "+args+" [FLAGS]"))}
				}
				dir, err := chooseDir(environ, c.String("state-dir"))
				if err != nil {
					return err
				}
				return explain(do(ctx, c, clientIn(dir)))
			},
		}
	}
	timeout := &cli.StringFlag{Name: "timeout", Usage: "`TIME` to wait, such as 90s or 10m; the status is 75 then (default: no limit)"}
	formats := []string{string(hostfile.OpenMPI), string(hostfile.Hydra), string(hostfile.Horovod), string(hostfile.DeepSpeed)}
	return []*cli.Command{
		command("status", "", "where the job stands: who is present, who is missing, and why", showStatus,
			&cli.BoolFlag{Name: "json", Usage: "for programs"}, &cli.BoolFlag{Name: "watch", Usage: "show every change, until the job ends"}),
		command("wait", "", "return once all ranks are present", awaitAll, timeout),
		command("barrier", "NAME", "return once every rank has called it with that name", awaitBarrier, timeout),
		command("hosts", "", "name:slots of the live ranks, as horovodrun's --host-discovery-script wants them", showHosts),
		command("hostfile", "", "the host list", showHostfile,
			&cli.StringFlag{Name: "format", Usage: "`NAME`: " + strings.Join(formats, ", "), Value: formats[0]}),
	}
}

// askFunc asks the paiinit of this container, and prints what it answers.
type askFunc func(context.Context, *cli.Command, localapi.Client) error

// clientIn asks the paiinit that serves a state directory.
func clientIn(dir string) localapi.Client {
	return localapi.Client{Socket: filepath.Join(dir, statedir.StatusSocket)}
}

// explain says what a person can do where no answer came.
func explain(err error) error {
	var dial *localapi.DialError
	switch {
	case !errors.As(err, &dial):
		return err
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("only the user who runs paiinit, and root, may ask it: %w", dial.Err)
	}
	return fmt.Errorf("no paiinit runs in this container: nobody answers on %s "+
		"(PAIINIT_STATE_DIR or --state-dir says where else to ask)", dial.Socket)
}

// waitTimeout reads --timeout; 0 = no limit.
func waitTimeout(c *cli.Command) (time.Duration, error) {
	v := c.String("timeout")
	if v == "" || v == "0" {
		return 0, nil
	}
	d, err := time.ParseDuration(v)
	if err != nil || d <= 0 {
		return 0, &usageError{fmt.Errorf("--timeout is %q: want a time such as 90s or 10m", v)}
	}
	return d, nil
}

func awaitAll(ctx context.Context, c *cli.Command, ask localapi.Client) error {
	d, err := waitTimeout(c)
	if err != nil {
		return err
	}
	return ask.Wait(ctx, d)
}

func awaitBarrier(ctx context.Context, c *cli.Command, ask localapi.Client) error {
	d, err := waitTimeout(c)
	if err != nil {
		return err
	}
	name := c.Args().First()
	if name == "" || len(name) > rendezvous.MaxName {
		return &usageError{fmt.Errorf("the name of a barrier has 1 to %d bytes, not %d", rendezvous.MaxName, len(name))}
	}
	return ask.Barrier(ctx, name, d)
}

func showHosts(ctx context.Context, c *cli.Command, ask localapi.Client) error {
	hosts, err := ask.Hosts(ctx)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	for _, h := range hosts {
		fmt.Fprintf(&b, "%s:%d\n", h.Name, h.Slots)
	}
	_, err = b.WriteTo(c.Root().Writer)
	return err
}

func showHostfile(ctx context.Context, c *cli.Command, ask localapi.Client) error {
	dialect := hostfile.Dialect(c.String("format"))
	if err := hostfile.Check(dialect, "name"); err != nil {
		return &usageError{fmt.Errorf("--format is %q: want openmpi, hydra, horovod or deepspeed", dialect)}
	}
	hosts, err := ask.Hostfile(ctx)
	if err != nil {
		return err
	}
	var list []hostfile.Host
	for _, h := range hosts {
		list = append(list, hostfile.Host(h))
	}
	return hostfile.Write(c.Root().Writer, dialect, list)
}

// watchInterval is how often a change is looked for.
const watchInterval = time.Second

func showStatus(ctx context.Context, c *cli.Command, ask localapi.Client) error {
	s, err := ask.Status(ctx)
	if err != nil {
		return err
	}
	watch := c.Bool("watch")
	show := func(s *localapi.Status) error {
		switch {
		case c.Bool("json") && watch:
			return json.NewEncoder(c.Root().Writer).Encode(s) // one line for each change
		case c.Bool("json"):
			return printJSON(c.Root().Writer, s)
		}
		return sayStatus(c.Root().Writer, s, time.Now())
	}
	if err := show(s); err != nil || !watch {
		return err
	}
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	last := s
	for last.Phase != localapi.Ended {
		<-tick.C
		s, err := ask.Status(ctx)
		if err != nil {
			complain("%v", explain(err))
			return nil // it was there before: this is the end of the job
		}
		if same(last, s) {
			continue
		}
		last = s
		if !c.Bool("json") {
			if _, err := fmt.Fprintln(c.Root().Writer); err != nil {
				return err
			}
		}
		if err := show(last); err != nil {
			return err
		}
	}
	return nil
}

// same compares what is shown of two statuses.
func same(a, b *localapi.Status) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

// sayStatus prints a status for people: one sentence, how long the phases took, and a row for every rank.
func sayStatus(w io.Writer, s *localapi.Status, now time.Time) error {
	var b strings.Builder
	if e := missing(s); len(e.Missing) > 0 {
		fmt.Fprintf(&b, "%s: %v\n", s.Phase, e)
	} else {
		fmt.Fprintf(&b, "%s: %d of %s ranks are present\n", s.Phase, e.Present, unknown(s.Size))
	}
	fmt.Fprintf(&b, "this is rank %s", unknown(s.Rank))
	if s.Hash != "" {
		fmt.Fprintf(&b, ", epoch %d, roster %.12s", s.Epoch, s.Hash)
	}
	for _, phase := range []string{"listen", "gather", "launch"} {
		if t, ok := s.Timings[phase]; ok {
			fmt.Fprintf(&b, ", %s %.3fs", phase, t)
		}
	}
	b.WriteString("\n\n")
	t := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "RANK\tNAME\tADDRESS\tSTATE\tSINCE\tSLOTS\tGPUS\tFABRIC\tREASON") // reported by Flush
	for _, r := range s.Ranks {
		addr := r.Host
		if r.Port > 0 {
			addr = net.JoinHostPort(r.Host, strconv.Itoa(r.Port))
		}
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%v\t%s\t%s\t%s\t%s\n", dash(r.Rank), r.Alias, addr, r.State, now.Sub(r.Since).Truncate(time.Second),
			dash(r.Slots), dash(r.GPUs), r.Fabric, r.Reason)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// dash stands for a number that is not known.
func dash(n int) string {
	if n < 0 {
		return "-"
	}
	return strconv.Itoa(n)
}
