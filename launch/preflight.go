package launch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// The output of a preflight that rank 0 gets. In JSON it takes less than 8 KiB, whatever the bytes are.
const (
	preflightLines = 5
	preflightLine  = 200 // bytes

	preflightGrace = 2 * time.Second // from SIGTERM to SIGKILL
)

// Preflight runs a line of a shell with c's environment, directory and stderr: the site's own check of this container
// before the launch. Its stdout becomes stderr, because stdout belongs to the job. The line gets SIGTERM after limit
// (0 = none), and when ctx ends. failure is "" if it has exited with 0; tail has the last lines of its output.
func Preflight(ctx context.Context, c Command, line string, limit time.Duration) (failure string, tail []string) {
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	c.Path = "/bin/sh"
	c.Args = []string{c.Path, "-c", `exec /bin/sh -c "$0" >&2`, line}
	c.TailLines, c.Grace, c.WholeGroup = preflightLines, preflightGrace, true
	result, err := Run(ctx, c)
	for _, l := range result.Tail {
		tail = append(tail, printable(l[:min(len(l), preflightLine)]))
	}
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Sprintf("did not end in %v", limit.Round(time.Millisecond)), tail
	case err != nil:
		return err.Error(), tail
	case result.Signal != 0:
		return "was ended by " + SignalName(int(result.Signal)), tail
	case result.Code != 0:
		return fmt.Sprintf("exit status %d", result.Code), tail
	}
	return "", tail
}

// printable replaces what could disturb the log of another container.
func printable(line string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == utf8.RuneError {
			return '?'
		}
		return r
	}, line)
}
