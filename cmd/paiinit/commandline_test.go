package main

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/cmdline"
)

// The job's command line stays unchanged, even if it looks like one of paiinit's.
func TestCommandIsKeptApart(t *testing.T) {
	for _, test := range []struct{ args, command string }{
		{"-- a", "a"},
		{"a", "a"},
		{"run a", "a"},
		{"run -- run a", "run a"},
		{"-- run a", "run a"},
		{"a -- b", "a -- b"},
		{"-- -- a", "-- a"},
		{"a --size 3 --help", "a --size 3 --help"},
		{"a _ --size 3", "a _ --size 3"},
		{"--size 3 a --rank 1", "a --rank 1"},
		{"--size=3 a --rank 1", "a --rank 1"},
		{"-size 3 a --rank 1", "a --rank 1"},
		{"--size 3 --insecure a -h", "a -h"},
		{"--insecure=true a -h", "a -h"},
		{"--size -- a", "a"}, // the value is --
		{"--job _ a -- b", "a -- b"},
		{"--job=_ a _ _ --insecure", "a _ _ --insecure"},
		{"--insecure help", "help"},
		{"- -x", "- -x"},
		{"", ""},
		{"--size 3", ""},
	} {
		args := []string{"paiinit"}
		for _, word := range strings.Fields(test.args) {
			args = append(args, strings.ReplaceAll(word, "_", ""))
		}
		want := []string{}
		for _, word := range strings.Fields(test.command) {
			want = append(want, strings.ReplaceAll(word, "_", ""))
		}
		var got []string
		app := newApp(nil, func(_ context.Context, s settings) error { got = s.command; return nil })
		require.NoError(t, app.Run(cmdline.RunArgs(args)), "%q", test.args)
		require.Equal(t, want, append([]string{}, got...), "%q", test.args)
	}
}

// If the ENTRYPOINT and the command are both this program, they become one command line.
func TestAdopt(t *testing.T) {
	self := func(word string) bool { return word == "paiinit" || word == "/sbin/paiinit" || word == "init" }
	for _, row := range []struct{ args, want, variables string }{
		{"a b", "paiinit a b", ""},
		{"-- a --size 3", "paiinit -- a --size 3", ""},
		{"-- env", "paiinit -- env", ""},
		{"-- install -d x", "paiinit -- install -d x", ""},
		{"--timeout 1m -- status", "paiinit --timeout 1m -- status", ""},
		{"status", "paiinit status", ""},
		{"rsh host paiinit status", "paiinit rsh host paiinit status", ""},
		{"each -- paiinit status", "paiinit each -- paiinit status", ""},
		{"-- sh -c paiinit", "paiinit -- sh -c paiinit", ""},
		{"", "paiinit", ""},

		{"-- paiinit --exec all -- a --b", "paiinit run --exec all -- a --b", ""},
		{"-- paiinit run --exec all a --b", "paiinit run --exec all -- a --b", ""},
		{"run paiinit a", "paiinit run -- a", ""},
		{"--exec rank0 --insecure -- /sbin/paiinit --exec=all -- a",
			"paiinit run --exec rank0 --insecure --exec=all -- a", ""},
		{"-- init --exec all a", "paiinit run --exec all -- a", ""},
		{"--size 3 -- paiinit --rank 1 -- init --role w -- paiinit a paiinit",
			"paiinit run --size 3 --rank 1 --role w -- a paiinit", ""},
		{"-- paiinit", "paiinit run", ""},
		{"-- paiinit -- paiinit -- paiinit", "paiinit run", ""},
		{"-- paiinit -- env", "paiinit run -- env", ""},

		{"-- paiinit env --json", "paiinit env --json", ""},
		{"-- paiinit install /x", "paiinit install /x", ""},
		{"-- init env --json", "init env --json", ""},
		{"-- paiinit rsh host a", "paiinit rsh host a", ""},
		{"-- paiinit --help", "paiinit --help", ""},
		{"-- paiinit version", "paiinit version", ""},
		{"--state-dir /x --state-dir=/y --insecure --rank 3 -- paiinit status --json", "paiinit status --json",
			"PAIINIT_RANK=3 PAIINIT_INSECURE=true PAIINIT_STATE_DIR=/y PAIINIT_STATE_DIR=/x "},

		{"-- --timeout 1m mpirun -n 2", "paiinit run --timeout 1m -- mpirun -n 2", ""},
		{"--size 3 -- --exec all -- mpirun --exec x", "paiinit run --size 3 --exec all -- mpirun --exec x", ""},
		{"-- --exec all paiinit --size 3 a", "paiinit run --exec all --size 3 -- a", ""},
		{"-- --help", "paiinit --help", ""},
		{"-- -- a", "paiinit run -- a", ""},
		{"-- - a", "paiinit -- - a", ""},
	} {
		got, environ := adopt(append([]string{"paiinit"}, strings.Fields(row.args)...), []string{"A=1"}, self)
		require.Equal(t, row.want, strings.Join(got, " "), row.args)
		require.Equal(t, row.variables+"A=1", strings.Join(environ, " "), row.args)
	}

	// The inner of two equal flags takes precedence over the outer one, and both over the environment.
	s := parse(t, []string{"PAIINIT_EXEC=rank0", "PAIINIT_TIMEOUT=9m", "PAIINIT_GRACE=9s"}, self,
		"--exec", "rank0", "--timeout", "1m", "--insecure", "--",
		"paiinit", "--exec", "all", "--insecure=false", "--", "a")
	require.Equal(t, execAll, s.exec)
	require.Equal(t, time.Minute, s.timeout)
	require.Equal(t, 9*time.Second, s.grace)
	require.False(t, s.insecure)
	require.Equal(t, []string{"a"}, s.command)
}

// Environment twins come from the environment that main passes. An empty twin counts as unset.
func TestTwins(t *testing.T) {
	t.Setenv("PAIINIT_GRACE", "1s")
	none := func(string) bool { return false }
	s := parse(t, []string{"PAIINIT_TIMEOUT=0", "PAIINIT_EXEC=", "PAIINIT_INSECURE=1", "PAIINIT_ALLOW_PARTIAL=true",
		"PAIINIT_RDMA=off", "PAIINIT_LOG_LEVEL=warn", "PAIINIT_UNTIL=", "PAIINIT_ROLE=ps", "PAIINIT_HELP=true"},
		none, "--allow-partial=false", "--rdma", "require", "--rank", "1", "a")
	require.Zero(t, s.timeout)
	require.Equal(t, 8*time.Second, s.grace)
	require.Equal(t, execRank0, s.exec)
	require.True(t, s.insecure)
	require.False(t, s.allowPartial)
	require.Equal(t, rdmaRequire, s.rdma)
	require.Equal(t, slog.LevelWarn, s.logLevel)
	require.Empty(t, s.until)
	require.Equal(t, map[string]string{"PAIINIT_RANK": "1"}, s.job) // envspec reads the twins of these

	for _, row := range []struct{ variables, args, want string }{
		{"PAIINIT_TIMEOUT=-1m", "a", `--timeout (PAIINIT_TIMEOUT) is "-1m0s": want a time such as 90s or 10m`},
		{"", "--grace=-1s a", `--grace (PAIINIT_GRACE) is "-1s": want a time such as 90s or 10m`},
		{"", "--grace 5 a", `--grace (PAIINIT_GRACE) is "5": want a time such as 90s or 10m`},
		{"", "--insecure=maybe a", `--insecure (PAIINIT_INSECURE) is "maybe": want true or false`},
		{"", "--log-level trace a", `--log-level (PAIINIT_LOG_LEVEL) is "trace": want one of info, debug, warn, error`},
		{"PAIINIT_SSH=none PAIINIT_INSECURE=no PAIINIT_GRACE=x", "--exec all a",
			`--ssh (PAIINIT_SSH) is "none": want one of own, image` + "\n" +
				`--insecure (PAIINIT_INSECURE) is "no": want true or false` + "\n" +
				`--grace (PAIINIT_GRACE) is "x": want a time such as 90s or 10m`},
		{"", "--until chief a", `--until (PAIINIT_UNTIL) is "chief": it needs --exec all`},
		{"PAIINIT_EXEC=leader", "--until chief a",
			`--until (PAIINIT_UNTIL) is "chief": with --exec leader the job ends with rank 0's command`},
		{"PAIINIT_UNTIL=ps", "a", `--until (PAIINIT_UNTIL) is "ps": it needs --exec all`},
	} {
		app := newApp(strings.Fields(row.variables), func(context.Context, settings) error { return errors.New("ran") })
		err := app.Run(append([]string{"paiinit", "run"}, strings.Fields(row.args)...))
		require.EqualError(t, err, row.want)
		require.Equal(t, statusUsage, statusOf(err))
	}
}

func parse(t *testing.T, environ []string, self func(string) bool, words ...string) (got settings) {
	t.Helper()
	args, environ := adopt(append([]string{"paiinit"}, words...), environ, self)
	app := newApp(environ, func(_ context.Context, s settings) error { got = s; return nil })
	require.NoError(t, app.RunContext(t.Context(), cmdline.RunArgs(args)))
	return got
}
