// Command faults runs a matrix of faults in jobs of three real hosts: what goes wrong, in which phase of the job, at
// which rank. It compares the status of every container, the time and the log with what a rule says (oracle.go), and
// writes what it has seen into the generated section of docs/reliability.md.
//
// usage: faults [-bin FILE] [-o FILE] [-parallel N] [-logs DIR] [-list] [PATTERN]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/integration/lab"
)

func main() {
	lab.Main()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := faultsOf(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "faults: %v\n", err)
		stop()
		os.Exit(1)
	}
}

// faultsOf runs the cells that the arguments ask for.
func faultsOf(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("faults", flag.ContinueOnError)
	bin := flags.String("bin", "bin/paiinit", "binary to test")
	file := flags.String("o", "", "Markdown file in which to replace the rows of the cells that have passed")
	parallel := flags.Int("parallel", 8, "cells at the same time")
	logs := flags.String("logs", os.TempDir(), "directory for the logs of cells that fail")
	keep := flags.Bool("keep", false, "keep the logs of all cells")
	list := flags.Bool("list", false, "print the cells and the expectations, and run nothing")
	if err := flags.Parse(args); err != nil {
		return err
	}
	all, _ := cells()
	picked, err := matching(all, flags.Arg(0))
	if err != nil {
		return err
	}
	if *list {
		for _, c := range picked {
			if _, err := fmt.Fprintln(out, c.rule()); err != nil {
				return err
			}
		}
		return nil
	}
	current, err := filepath.Abs(*bin)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "paiinit-faults-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	begin := time.Now()
	var results []result
	failed := 0
	runAll(ctx, picked, newBinaries(current, dir), *parallel, 1, func(r result) {
		results = append(results, r)
		if r.err != nil {
			failed++
		}
		if r.err != nil || *keep {
			r.save(*logs)
		}
		_, werr := io.WriteString(out, r.text())
		err = errors.Join(err, werr)
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	done := summary(results, time.Since(begin))
	if _, werr := fmt.Fprintln(out, done); werr != nil {
		return werr
	}
	if err == nil && *file != "" {
		err = update(*file, results, machine())
	}
	if failed > 0 {
		err = errors.Join(err, fmt.Errorf("%d cells failed", failed))
	}
	return err
}

// machine describes this machine for the page.
func machine() string {
	var u unix.Utsname
	_ = unix.Uname(&u) // never fails
	return fmt.Sprintf("Seen on %d CPUs, Linux %s, %s.",
		runtime.NumCPU(), unix.ByteSliceToString(u.Release[:]), runtime.Version())
}

// newBinaries returns the build to test, and one with another version that is made when it is needed.
func newBinaries(current, dir string) binaries {
	return binaries{current, sync.OnceValues(func() (string, error) {
		file := filepath.Join(dir, "other")
		return file, build(file, "v0.0.1")
	})}
}

// build builds paiinit as released: static.
func build(file, version string) error {
	cmd := exec.Command("go", "build", "-trimpath", "-tags", "urfave_cli_no_docs",
		"-ldflags", "-s -w -X main.version="+version, "-o", file, "github.com/paiinit/paiinit/cmd/paiinit")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building paiinit: %w\n%s", err, text)
	}
	return nil
}

// runAll runs cells, some at the same time, and reports each result, one call at a time.
func runAll(ctx context.Context, list []cell, bin binaries, parallel, slack int, report func(result)) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	slots := make(chan struct{}, max(1, parallel))
	defer wg.Wait()
	for _, c := range list {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		wg.Go(func() {
			r := runCell(ctx, c, bin, slack)
			<-slots
			mu.Lock()
			defer mu.Unlock()
			report(r)
		})
	}
}

// text describes a result.
func (r result) text() string {
	switch {
	case r.skipped != nil:
		return fmt.Sprintf("skip %s: %v\n", r.id(), r.skipped)
	case r.err == nil:
		line := strings.TrimSpace(r.line)
		if r.late > 0 {
			line += fmt.Sprintf(" (the fault came too late %d times before)", r.late)
		}
		return fmt.Sprintf("ok   %-55s %5.1f s  %s\n", r.id(), r.took.Seconds(), line)
	}
	e := r.expect()
	return fmt.Sprintf("FAIL %-55s %5.1f s  %s\nexpected, because %s: %s\n%v\nlog: %s\n",
		r.id(), r.took.Seconds(), r.statuses, e.why, e.expected(r.cell), r.err, r.logName())
}

func (r result) logName() string {
	return "paiinit-fault-" + strings.ReplaceAll(r.id(), "/", "-") + ".log"
}

// save writes the log of a cell. It only helps with debugging: failing to write it fails nothing.
func (r result) save(dir string) {
	_ = os.WriteFile(filepath.Join(dir, r.logName()), fmt.Appendf(nil, "%s\n%v\n\n%s\n", r.id(), r.err, r.log), 0o600)
}
