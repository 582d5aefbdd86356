package main

import (
	"bytes"
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

	"github.com/urfave/cli/v2"

	"github.com/paiinit/paiinit/hostfile"
	"github.com/paiinit/paiinit/localapi"
	"github.com/paiinit/paiinit/rendezvous"
	"github.com/paiinit/paiinit/statedir"
)

// questions returns the commands that query the paiinit running in this container.
func questions(environ []string) []*cli.Command {
	command := func(name, args, usage string, do askFunc, flags ...cli.Flag) *cli.Command {
		return &cli.Command{
			Name: name, Usage: usage, ArgsUsage: args,
			Flags: append(flags, &cli.StringFlag{
				Name: "state-dir", Usage: "state directory of the paiinit to ask [PAIINIT_STATE_DIR=`DIR`]",
			}),
			Action: func(c *cli.Context) error {
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
				return explain(do(c, clientIn(dir)))
			},
		}
	}
	timeout := &cli.DurationFlag{Name: "timeout", Usage: "`TIME` to wait, such as 90s or 10m, before exiting with 75",
		DefaultText: "forever", Action: notNegative("timeout")}
	formats := []string{
		string(hostfile.OpenMPI), string(hostfile.Hydra), string(hostfile.Horovod), string(hostfile.DeepSpeed),
	}
	return []*cli.Command{
		command("status", "", "print which ranks are present, which are missing, and why", showStatus,
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
			&cli.BoolFlag{Name: "watch", Usage: "print every change until the job ends"}),
		command("wait", "", "wait until all ranks are present", awaitAll, timeout),
		command("barrier", "NAME", "wait until every rank has called it with the same NAME", awaitBarrier, timeout),
		command("hosts", "", "print name:slots of the live ranks, for horovodrun --host-discovery-script", showHosts),
		command("hostfile", "", "print the host list", showHostfile,
			&cli.GenericFlag{
				Name: "format", Usage: "`NAME` of the launcher that reads it: " + strings.Join(formats, ", "),
				Value: new(dialect(hostfile.OpenMPI)),
			}),
	}
}

// askFunc asks the running paiinit and prints its answer.
type askFunc func(*cli.Context, localapi.Client) error

// clientIn returns a client for the paiinit that owns a state directory.
func clientIn(dir string) localapi.Client {
	return localapi.Client{Socket: filepath.Join(dir, statedir.StatusSocket)}
}

// explain adds advice to the error about a paiinit that cannot be reached.
func explain(err error) error {
	var dial *localapi.DialError
	switch {
	case !errors.As(err, &dial):
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
		return &usageError{fmt.Errorf("the name of a barrier has 1 to %d bytes, not %d", rendezvous.MaxName, len(name))}
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

// dialect is the value of --format.
type dialect hostfile.Dialect

func (d *dialect) String() string { return string(*d) }

func (d *dialect) Set(name string) error {
	if hostfile.Check(hostfile.Dialect(name), "name") != nil {
		return errors.New("want openmpi, hydra, horovod or deepspeed")
	}
	*d = dialect(name)
	return nil
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

// watchInterval is how often `paiinit status --watch` polls.
const watchInterval = time.Second

func showStatus(c *cli.Context, ask localapi.Client) error {
	s, err := ask.Status(c.Context)
	if err != nil {
		return err
	}
	watch := c.Bool("watch")
	show := func(s *localapi.Status) error {
		switch {
		case c.Bool("json") && watch:
			return json.NewEncoder(c.App.Writer).Encode(s) // one line for each change
		case c.Bool("json"):
			return printJSON(c.App.Writer, s)
		}
		return sayStatus(c.App.Writer, s, time.Now())
	}
	if err := show(s); err != nil || !watch {
		return err
	}
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	last := s
	for last.Phase != localapi.Ended {
		<-tick.C
		s, err := ask.Status(c.Context)
		if err != nil {
			complain("%v", explain(err))
			return nil // paiinit has answered before, so the job has ended
		}
		if same(last, s) {
			continue
		}
		last = s
		if !c.Bool("json") {
			if _, err := fmt.Fprintln(c.App.Writer); err != nil {
				return err
			}
		}
		if err := show(last); err != nil {
			return err
		}
	}
	return nil
}

// same reports whether two statuses print the same.
func same(a, b *localapi.Status) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

// sayStatus prints a status as text: one sentence, the time of each phase, and a row for each rank.
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
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%v\t%s\t%s\t%s\t%s\n",
			dash(r.Rank), r.Alias, addr, r.State, now.Sub(r.Since).Truncate(time.Second),
			dash(r.Slots), dash(r.GPUs), r.Fabric, r.Reason)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// dash formats a number; "-" stands for an unknown one.
func dash(n int) string {
	if n < 0 {
		return "-"
	}
	return strconv.Itoa(n)
}
