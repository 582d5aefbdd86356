package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/urfave/cli/v2"

	"github.com/paiinit/paiinit/rsh"
	"github.com/paiinit/paiinit/signals"
	"github.com/paiinit/paiinit/statedir"
)

// eachAtOnce is on how many ranks `paiinit each` runs the command at the same time.
const eachAtOnce = 64

// endStatus is the exit status of a command that has said everything already.
type endStatus int

func (s endStatus) Error() string { return fmt.Sprintf("status %d", int(s)) }

func eachCommand(environ []string) *cli.Command {
	return &cli.Command{
		Name:      "each",
		Usage:     "run COMMAND on every rank, prefix each line with its rank, exit with the highest status",
		ArgsUsage: "[--] COMMAND [ARG...]",
		Description: "A COMMAND of one word is run by the shell, such as 'df -h | grep shm'; " +
			"several words are run as they are.\n" +
			"Standard output and standard error stay separate. Signals are forwarded to every rank.",
		Flags: []cli.Flag{
			&cli.StringFlag{
				Name: "ranks", Usage: "`LIST` of ranks and host names, such as 0,3-5,worker-7", DefaultText: "all",
			},
		},
		Action: func(c *cli.Context) error {
			dir, err := chooseDir(environ, "")
			if err != nil {
				return err
			}
			e := &each{dir: dir, stdout: os.Stdout, stderr: os.Stderr}
			return explain(e.run(c.Context, c.String("ranks"), c.Args().Slice()))
		},
	}
}

// each is one command on many ranks.
type each struct {
	dir            string // state directory
	stdout, stderr io.Writer

	writing sync.Mutex // lines are not mixed

	mu      sync.Mutex
	running map[chan os.Signal]bool
	stopped syscall.Signal // nothing is started any more; 0 = not so
	worst   int
}

func (e *each) run(ctx context.Context, list string, words []string) error {
	if len(words) == 0 {
		return &usageError{errors.New("each needs a COMMAND")}
	}
	hosts, err := clientIn(e.dir).Names(ctx)
	if err != nil {
		return err
	}
	if len(hosts) == 0 {
		return &absentError{errors.New("no host list yet: not all ranks are present")}
	}
	ranks, err := parseRanks(list, hosts)
	if err != nil {
		return &usageError{fmt.Errorf("--ranks: %w", err)}
	}
	e.running = make(map[chan os.Signal]bool)
	caught := make(chan os.Signal, 16)
	signal.Notify(caught, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	defer signal.Stop(caught)
	done := make(chan struct{})
	var passing sync.WaitGroup
	passing.Go(func() { e.pass(caught, done) })

	var runs sync.WaitGroup
	places := make(chan struct{}, eachAtOnce)
	for _, rank := range ranks {
		places <- struct{}{}
		runs.Go(func() {
			defer func() { <-places }()
			e.one(ctx, rank, hosts[rank][0], shellWords(words))
		})
	}
	runs.Wait()
	close(done)
	passing.Wait()
	if e.worst == 0 && e.stopped != 0 {
		e.worst = 128 + int(e.stopped)
	}
	if e.worst != 0 {
		return endStatus(e.worst)
	}
	return nil
}

// absentError says that something may be there later.
type absentError struct{ err error }

func (e *absentError) Error() string { return e.err.Error() }
func (e *absentError) Unwrap() error { return e.err }

// pass hands signals to all that run.
func (e *each) pass(caught <-chan os.Signal, done <-chan struct{}) {
	for {
		select {
		case <-done:
			return
		case sig := <-caught:
			e.mu.Lock()
			if n := signals.Terminating(sig); n > 0 {
				e.stopped = syscall.Signal(n)
			}
			for to := range e.running {
				select {
				case to <- sig:
				default: // it has enough of them
				}
			}
			e.mu.Unlock()
		}
	}
}

// one runs the command on one rank.
func (e *each) one(ctx context.Context, rank int, host, command string) {
	signals := make(chan os.Signal, 16)
	e.mu.Lock()
	if e.stopped != 0 {
		e.mu.Unlock()
		return
	}
	e.running[signals] = true
	e.mu.Unlock()
	var copying sync.WaitGroup
	status := 255
	stdout, err := e.prefix(&copying, e.stdout, rank)
	if err == nil {
		var stderr *os.File
		if stderr, err = e.prefix(&copying, e.stderr, rank); err == nil {
			c := rsh.Caller{Socket: filepath.Join(e.dir, statedir.AgentSocket), Stdout: stdout, Stderr: stderr, Signals: func() <-chan os.Signal { return signals }}
			status = c.Run(ctx, rsh.Invocation{Host: host, Command: command})
			_ = stderr.Close()
		}
		_ = stdout.Close()
	}
	copying.Wait()
	if err != nil {
		complain("rank %d (%s): %v", rank, host, err)
	} else if status != 0 {
		complain("rank %d (%s) ended with status %d", rank, host, status)
	}
	e.mu.Lock()
	delete(e.running, signals)
	e.worst = max(e.worst, status)
	e.mu.Unlock()
}

// prefix returns a file whose lines go to w with the rank in front, until it is closed everywhere.
func (e *each) prefix(copying *sync.WaitGroup, w io.Writer, rank int) (*os.File, error) {
	r, file, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	copying.Go(func() {
		defer func() { _ = r.Close() }()
		in := bufio.NewReaderSize(r, 64<<10)
		for {
			line, err := in.ReadSlice('\n') // a longer line is cut
			if len(line) > 0 {
				e.writing.Lock()
				_, werr := fmt.Fprintf(w, "%d: %s\n", rank, strings.TrimSuffix(string(line), "\n"))
				e.writing.Unlock()
				if werr != nil {
					return // the command gets SIGPIPE
				}
			}
			if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
				return
			}
		}
	})
	return file, nil
}

// parseRanks reads a list of ranks, ranges of ranks and names, of which each may stand there more than once. "" = all.
func parseRanks(list string, hosts [][]string) ([]int, error) {
	var ranks []int
	if list == "" {
		for rank := range hosts {
			ranks = append(ranks, rank)
		}
		return ranks, nil
	}
	for word := range strings.SplitSeq(list, ",") {
		first, last, err := parseRange(strings.TrimSpace(word), hosts)
		if err != nil {
			return nil, err
		}
		for rank := first; rank <= last; rank++ {
			if !slices.Contains(ranks, rank) {
				ranks = append(ranks, rank)
			}
		}
	}
	return ranks, nil
}

func parseRange(word string, hosts [][]string) (first, last int, err error) {
	if named := slices.IndexFunc(hosts, func(names []string) bool { return slices.Contains(names, word) }); named >= 0 {
		return named, named, nil
	}
	from, to, isRange := strings.Cut(word, "-")
	if !isRange {
		to = from
	}
	first, err = strconv.Atoi(from)
	if err == nil {
		last, err = strconv.Atoi(to)
	}
	switch {
	case err != nil || from[0] == '+' || to[0] == '+':
		return 0, 0, fmt.Errorf("%q is no rank, no range of ranks such as 3-5, and no name of a host", word)
	case first > last:
		return 0, 0, fmt.Errorf("%q begins behind its end", word)
	case last >= len(hosts):
		return 0, 0, fmt.Errorf("%q: the job has the ranks 0 to %d", word, len(hosts)-1)
	}
	return first, last, nil
}

// shellWords is a command for the shell that runs words as they are; one word alone is such a command already.
func shellWords(words []string) string {
	if len(words) == 1 {
		return words[0]
	}
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " ")
}
