package cmdline

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/urfave/cli/v2"
)

// values are what the flags of the tests set.
type values struct {
	name, mode string
	loud       bool
	wait       time.Duration
}

func (v *values) flags() []cli.Flag {
	return []cli.Flag{
		Text(&v.name, "name", "NAME", "a name", "none"),
		Choice(&v.mode, "mode", "MODE", "a mode", "auto", "off"),
		Bool(&v.loud, "so-loud", "be loud"),
		Duration(&v.wait, "wait", "how long to wait", time.Minute, "1m"),
	}
}

func TestFlags(t *testing.T) {
	environ := map[string]string{}
	run := func(line string) (v values, err error) {
		app := &cli.App{
			ExitErrHandler: func(*cli.Context, error) {},
			Commands: []*cli.Command{{
				Name: "run", Flags: v.flags(), HideHelp: true, OnUsageError: OnUsageError,
				Before: func(c *cli.Context) error {
					return SetTwins(c, new(values).flags(), func(name string) string { return environ[name] })
				},
				Action: func(*cli.Context) error { return nil },
			}},
		}
		err = app.Run(append([]string{"x", "run"}, strings.Fields(line)...))
		return v, err
	}
	v, err := run("")
	require.NoError(t, err)
	require.Equal(t, values{mode: "auto", wait: time.Minute}, v)

	environ = map[string]string{"PAIINIT_SO_LOUD": "1", "PAIINIT_MODE": "off", "PAIINIT_NAME": "", "PAIINIT_WAIT": "3s"}
	v, err = run("--name n --mode=auto")
	require.NoError(t, err)
	require.Equal(t, values{name: "n", mode: "auto", loud: true, wait: 3 * time.Second}, v)

	environ = nil
	for line, want := range map[string]string{
		"--mode on":       `--mode (PAIINIT_MODE) is "on": want one of auto, off`,
		"--so-loud=maybe": `--so-loud (PAIINIT_SO_LOUD) is "maybe": want true or false`,
		"--wait 5":        `--wait (PAIINIT_WAIT) is "5": want a time such as 90s or 10m`,
		"--wait=-1s":      `--wait (PAIINIT_WAIT) is "-1s": want a time such as 90s or 10m`,
		"--what":          "unknown flag --what",
		"--wait":          "--wait needs a value",
	} {
		_, err := run(line)
		require.EqualError(t, err, want)
		var usage *UsageError
		require.True(t, errors.As(err, &usage))
	}
	for line, want := range map[string]string{
		"--mdoe=off": "--mode", "-waitt 3s": "--wait", "--soloud": "--so-loud", "--what": "", "--names=x": "--name",
	} {
		_, err := run(line)
		var usage *UsageError
		require.ErrorAs(t, err, &usage)
		require.Equal(t, want, usage.Meant, line)
	}
	environ = map[string]string{"PAIINIT_MODE": "on", "PAIINIT_WAIT": "x"}
	_, err = run("")
	require.EqualError(t, err, `--mode (PAIINIT_MODE) is "on": want one of auto, off`+"\n"+
		`--wait (PAIINIT_WAIT) is "x": want a time such as 90s or 10m`)
}

func TestFirstWord(t *testing.T) {
	for line, want := range map[string]string{
		"":                          "",
		"a --name b":                "--name b a",
		"--name b a":                "--name b a",
		"--so-loud a --mode off b":  "--so-loud --mode off a b",
		"a -name=b -- c --so-loud":  "-name=b a -- c --so-loud",
		"--name":                    "--name",
		"- --so-loud":               "--so-loud -",
		"a --wait -- b":             "--wait -- a b", // the value is --
		"a --unknown b":             "--unknown a b",
		"a --so-loud=false --name=": "--so-loud=false --name= a",
	} {
		got := FlagsFirst(new(values).flags(), strings.Fields(line))
		require.Equal(t, want, strings.Join(got, " "), line)
	}
	require.Equal(t, 3, FirstWord(new(values).flags(), strings.Fields("--name x --so-loud a --mode off")))
	require.Equal(t, 2, FirstWord(new(values).flags(), strings.Fields("--name x -- a")))
	require.Equal(t, 1, FirstWord(new(values).flags(), strings.Fields("--so-loud")))
}

func TestVariables(t *testing.T) {
	for line, want := range map[string]string{
		"":                              "",
		"--name a --so-loud --wait=3s":  "PAIINIT_WAIT=3s PAIINIT_SO_LOUD=true PAIINIT_NAME=a",
		"--name a --so-loud=0 --name=b": "PAIINIT_NAME=b PAIINIT_SO_LOUD=0 PAIINIT_NAME=a",
		"--unknown --name=":             "PAIINIT_NAME=",
	} {
		require.Equal(t, want, strings.Join(Variables(new(values).flags(), strings.Fields(line)), " "), line)
	}
}

func TestTwins(t *testing.T) {
	require.Equal(t, []string{"PAIINIT_NAME", "PAIINIT_MODE", "PAIINIT_SO_LOUD", "PAIINIT_WAIT"},
		Twins(new(values).flags()))
}

func TestHidden(t *testing.T) {
	for _, f := range Hidden(new(values).flags()) {
		require.False(t, f.(cli.VisibleFlag).IsVisible(), f.Names())
	}
}

func TestClosest(t *testing.T) {
	names := []string{"run", "status", "hosts", "hostfile", "env"}
	for word, want := range map[string]string{
		"status": "status", "STATUS": "status", "statsu": "status", "stats": "status", "sttauus": "status",
		"nev": "env", "ev": "", "evv": "env", "host": "hosts", "hostfil": "hostfile", "ostfiel": "hostfile",
		"": "", "python": "", "rung": "run", "rubber": "", strings.Repeat("status", 50): "",
	} {
		require.Equal(t, want, Closest(word, names), word)
	}
}

func TestOptional(t *testing.T) {
	run := func(line string) (how string, err error) {
		app := &cli.App{
			ExitErrHandler: func(*cli.Context, error) {},
			Commands: []*cli.Command{{
				Name: "status", HideHelp: true, OnUsageError: OnUsageError,
				Flags:  []cli.Flag{Optional(&how, "timeline", "how to show it", "text", "trace")},
				Action: func(*cli.Context) error { return nil },
			}},
		}
		err = app.Run(append([]string{"x", "status"}, strings.Fields(line)...))
		return how, err
	}
	for line, want := range map[string]string{
		"": "", "--timeline": "text", "--timeline=text": "text", "--timeline=trace": "trace",
	} {
		how, err := run(line)
		require.NoError(t, err)
		require.Equal(t, want, how, line)
	}
	_, err := run("--timeline=bars")
	require.EqualError(t, err, `--timeline is "bars": want one of text, trace`)
}

func TestHelp(t *testing.T) {
	var v values
	flags := append(In(Who, v.flags()[:2]...), In(Log, v.flags()[2:]...)...)
	flags = append(flags, &cli.BoolFlag{Name: "secret", Hidden: true}, &cli.BoolFlag{Name: "plain", Usage: "no group"})
	var ready, first string
	flags = append(flags, In(Leader, Text(&ready, "ready", "CHECK", "never shown", ""),
		Text(&first, "first", "COMMAND", "never shown", ""))...)
	app := &cli.App{Commands: []*cli.Command{
		{
			Name: "run", Usage: strings.Repeat("a long text ", 7) + "ends", UsageText: "paiinit run [FLAGS]",
			Flags: append(flags, Help()), Description: Examples("paiinit run"),
		},
		{Name: "hidden", Hidden: true},
		{Name: "own", Usage: "has its own help", CustomHelpTemplate: "own help"},
	}}
	setHelp(app)
	require.Equal(t, `paiinit run: a long text a long text a long text a long text a long text a long
             text a long text ends
Usage: paiinit run [FLAGS]

Flags:
  --plain      no group
Who:
  --name NAME  a name (default none)
  --mode MODE  a mode (default auto)
Leader (docs/leader.md):
  --ready CHECK --first COMMAND
Log:
  --so-loud    be loud
  --wait TIME  how long to wait (default 1m)

Examples:
  paiinit run
`, app.Commands[0].CustomHelpTemplate)
	require.Equal(t, "own help", app.Commands[2].CustomHelpTemplate)
	require.Contains(t, app.CustomAppHelpTemplate, `
Commands:
  run       a long text a long text a long text a long text a long text a long
            text a long text ends
  own       has its own help

Flags of run:
  What      `+`
  Who       --name NAME --mode MODE
  Leader    --ready CHECK --first COMMAND
  Network   `+`
  End       `+`
  Restart   `+`
  Log       --so-loud --wait TIME
`)
}

func TestRunSetsTheHelpOnlyWhereItIsAskedFor(t *testing.T) {
	for line, want := range map[string]bool{
		"paiinit": false, "paiinit run help": false, "paiinit run mpirun -host h": false,
		"paiinit --help": true, "paiinit run -h": true, "paiinit run -help=true": true, "paiinit nothing": true,
	} {
		app := &cli.App{
			Writer: io.Discard, HideHelp: true, Flags: []cli.Flag{Help()}, CommandNotFound: ShowHelp,
			Commands: []*cli.Command{{
				Name: "run", HideHelp: true, Flags: []cli.Flag{Help()}, Action: func(*cli.Context) error { return nil },
			}},
		}
		require.NoError(t, Run(t.Context(), app, strings.Fields(line)), line)
		require.Equal(t, want, app.CustomAppHelpTemplate != "", line)
	}
}
