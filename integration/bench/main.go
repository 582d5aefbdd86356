// Command bench measures paiinit beside the programs that people would use instead, all in one run and by turns, so
// that load on the machine slows each of them equally. It prints a table, and writes it as a section of a Markdown
// file.
//
// usage: bench [-n ROUNDS] [-bin FILE] [-old FILE] [-o FILE] [-sizes N,...] [-logs DIR] [-horovod DIR] init |
// rendezvous | scale | virtual | fabric | restarts | rsh | launchers | horovodrun | sshd | builds | plots
//
// "virtual" runs no binary: it takes its figures from TestScale of the package rendezvous, which simulates the ranks.
// "horovodrun" builds Horovod from its source (horovod.sh) and runs it on the Docker engine. "plots" measures nothing:
// it draws the plots of the Markdown file from its tables.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/paiinit/paiinit/integration/lab"
)

// Secrets of the measured jobs. paiinit stretches a short one, which costs memory and CPU in each container.
const (
	jobSecret   = "a secret of a benchmark, which has 32 bytes or more"
	shortSecret = "a secret of a benchmark"
)

func main() {
	lab.Main()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 2 && args[0] == "inside" {
		return inside(ctx, args[1], out)
	}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	rounds := flags.Int("n", 21, "rounds of each measurement")
	binary := flags.String("bin", "bin/paiinit", "binary to measure")
	old := flags.String("old", "", "earlier build of the binary, for builds")
	file := flags.String("o", "", "Markdown file in which to replace or add the section")
	sizes := flags.String("sizes", "64,256,512,1000", "job sizes for scale")
	logs := flags.String("logs", "", "directory for the logs of the containers of scale")
	source := flags.String("horovod", "", "directory of Horovod's source, for horovodrun")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() == 1 && flags.Arg(0) == "plots" && *file != "" {
		return drawPlots(*file)
	}
	if flags.NArg() != 1 || *rounds < 1 {
		return errors.New("usage: bench [-n ROUNDS] [-bin FILE] [-old FILE] [-o FILE] [-sizes N,...] [-logs DIR] " +
			"[-horovod DIR] init | rendezvous | scale | virtual | fabric | restarts | rsh | launchers | horovodrun | " +
			"sshd | builds | plots")
	}
	var r report
	var err error
	switch what := flags.Arg(0); what {
	case "init":
		r, err = measureInits(ctx, *binary, *rounds)
	case "rendezvous":
		r, err = measureRendezvous(ctx, *binary, *rounds)
	case "scale":
		var jobs []int
		if jobs, err = numbers(*sizes); err == nil {
			r, err = measureScale(ctx, *binary, jobs, *rounds, *logs)
		}
	case "virtual":
		r, err = measureVirtual(ctx)
	case "fabric":
		r, err = measureFabric(ctx, *binary, *rounds)
	case "restarts":
		r, err = measureRestarts(ctx, *binary, *rounds)
	case "rsh":
		r, err = measureShell(ctx, *binary, *rounds)
	case "launchers":
		r, err = measureLaunchers(ctx, *binary, *rounds)
	case "horovodrun":
		r, err = measureHorovod(ctx, *binary, *source, *rounds)
	case "sshd":
		r, err = measureSSHD(ctx, *binary, *rounds)
	case "builds":
		r, err = measureBuilds(ctx, [2]string{*old, *binary}, *rounds)
	default:
		err = fmt.Errorf("no such benchmark: %q", what)
	}
	if err != nil {
		return err
	}
	r.command = fmt.Sprintf("go run ./integration/bench -n %d -bin bin/paiinit %s", *rounds, flags.Arg(0))
	switch flags.Arg(0) {
	case "scale":
		r.command = fmt.Sprintf("go run ./integration/bench -n %d -bin bin/paiinit -sizes %s scale", *rounds, *sizes)
	case "virtual":
		r.command = "go run ./integration/bench virtual"
	case "horovodrun":
		r.command = fmt.Sprintf("go run ./integration/bench -n %d -bin bin/paiinit -horovod DIR horovodrun", *rounds)
	}
	if _, err := io.WriteString(out, r.text()); err != nil || *file == "" {
		return err
	}
	return r.update(*file)
}

// numbers parses a comma-separated list of numbers above 1.
func numbers(list string) (out []int, err error) {
	for word := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 2 {
			return nil, fmt.Errorf("-sizes %s: not a list of numbers above 1", list)
		}
		out = append(out, n)
	}
	return out, nil
}
