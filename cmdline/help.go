package cmdline

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// The groups of the flags of run.
const (
	What    = "What"
	Who     = "Who"
	Leader  = "Leader"
	Network = "Network"
	End     = "End"
	Restart = "Restart"
	Log     = "Log"
)

// Groups returns the groups of the flags of run in the order of the help.
func Groups() []string { return []string{What, Who, Leader, Network, End, Restart, Log} }

// pageOf returns the page that describes the flags of a group that few jobs need: the help lists only their names. ""
// = the help describes each of them.
func pageOf(group string) string {
	switch group {
	case Leader:
		return "docs/leader.md"
	case Restart:
		return "docs/restarts.md"
	}
	return ""
}

// Bare is the answer to a call without a word, where nothing tells about a job.
const Bare = `paiinit starts a distributed job: it waits until all containers are present,
runs COMMAND, and ends all containers with the same status.

  paiinit [FLAGS] [--] COMMAND [ARG...]        COMMAND on rank 0, such as mpirun
  paiinit --exec all [FLAGS] [--] COMMAND...   COMMAND on every rank

  paiinit env            print what it detects here about the job
  paiinit status         print which ranks are present or missing, and why
  paiinit each COMMAND   run COMMAND on every rank of the running job

Help: paiinit --help, paiinit SUBCOMMAND --help
`

// The help of the program before its commands, and after the flags of run.
const (
	intro = `paiinit starts a distributed job once all its containers are present,
and ends them all with the same status.

Usage: paiinit [run] [FLAGS] [--] COMMAND [ARG...]
       paiinit SUBCOMMAND [FLAGS] [ARG...]

`
	outro = `
Each flag has a variable, such as PAIINIT_LOG_LEVEL for --log-level.
Help on one: paiinit SUBCOMMAND --help. Guides and exit statuses: docs/
`
)

// RunExamples returns examples of the command run.
func RunExamples() string {
	return Examples("paiinit mpirun python3 train.py          # rank 0 runs it, for all hosts",
		"paiinit --exec all -- torchrun train.py  # every rank runs it")
}

// columns is the width of the help.
const columns = 80

// In puts flags into a group of the help.
func In(group string, flags ...cli.Flag) []cli.Flag {
	for _, f := range flags {
		if own, _ := inHelp(f); own != nil {
			*own = group
		}
	}
	return flags
}

// Examples returns the part of a description that shows how a command is called.
func Examples(lines ...string) string { return "Examples:\n  " + strings.Join(lines, "\n  ") }

// Run runs app with a command line. It writes the help only for a command line that may show it: this takes 1 ms, a
// fifth of the time that a command such as version takes.
func Run(ctx context.Context, app *cli.App, args []string) error {
	if slices.ContainsFunc(args, asksForHelp) {
		setHelp(app)
	}
	return app.RunContext(ctx, args)
}

func asksForHelp(word string) bool {
	name, _, _ := strings.Cut(strings.TrimLeft(word, "-"), "=")
	return name != word && (name == "h" || name == "help")
}

// setHelp sets the help of the program and of each command that has none. The help of the program shows the groups of
// the flags of run; the library's own help is wider than a terminal.
func setHelp(app *cli.App) {
	var p page
	p.add("%s%s\n\nCommands:\n", intro, RunExamples())
	for _, c := range app.Commands {
		if !c.Hidden {
			p.entry(fmt.Sprintf("  %-8s  ", c.Name), c.Usage)
		}
	}
	for _, c := range app.Commands {
		if c.Name == "run" {
			p.add("\nFlags of run:\n")
			p.groups(c)
		}
		if c.CustomHelpTemplate == "" {
			c.CustomHelpTemplate = help(c)
		}
	}
	p.WriteString(outro)
	app.CustomAppHelpTemplate = p.String()
}

// ShowHelp prints the help of a command that was given words with --help, else that of the program.
func ShowHelp(c *cli.Context, _ string) {
	setHelp(c.App)
	if c.Command.CustomHelpTemplate == "" {
		_ = cli.ShowAppHelp(c) // it never fails
		return
	}
	_ = cli.ShowSubcommandHelp(c) // nor does this
}

// help returns the help of a command.
func help(c *cli.Command) string {
	var p page
	p.entry("paiinit "+c.Name+": ", c.Usage)
	p.add("Usage: %s\n", c.UsageText)
	group, width := "Flags", 0
	var shown []cli.Flag
	for _, g := range append([]string{""}, Groups()...) {
		for _, f := range c.Flags {
			if name, _, visible := columnsOf(f); visible && groupOf(f) == g {
				if shown = append(shown, f); pageOf(g) == "" {
					width = max(width, len(name))
				}
			}
		}
	}
	for i, f := range shown {
		if where := pageOf(groupOf(f)); where != "" {
			if g := groupOf(f); g != group {
				group = g
				p.add("%s (%s):\n", g, where)
				p.entry("  ", namesOf(c)[g])
			}
			continue
		}
		if g := cmp.Or(groupOf(f), group); i == 0 || g != group {
			group = g
			p.add("%s%s:\n", strings.Repeat("\n", max(0, 1-i)), group)
		}
		name, usage, _ := columnsOf(f)
		p.entry(fmt.Sprintf("  %-*s  ", width, name), usage)
	}
	if c.Description != "" {
		p.add("\n%s\n", c.Description)
	}
	return p.String()
}

// groups adds the names of the flags of each group.
func (p *page) groups(c *cli.Command) {
	names := namesOf(c)
	for _, group := range Groups() {
		p.entry(fmt.Sprintf("  %-8s  ", group), names[group])
	}
}

// namesOf returns the names of a command's flags by group, with their values.
func namesOf(c *cli.Command) map[string]string {
	names := make(map[string]string)
	for _, f := range c.Flags {
		if name, _, visible := columnsOf(f); visible {
			g := groupOf(f)
			names[g] = strings.TrimSpace(names[g] + " " + strings.ReplaceAll(name, " ", "\u00a0"))
		}
	}
	return names
}

// page is a help text.
type page struct{ strings.Builder }

func (p *page) add(format string, args ...any) { fmt.Fprintf(p, format, args...) }

// entry adds a text after its heading. Its further lines begin below its first word. A no-break space becomes a space.
func (p *page) entry(heading, text string) {
	at := len(heading)
	p.WriteString(heading)
	for i, word := range strings.Fields(strings.ReplaceAll(text, "\u00a0", "\x00")) {
		switch {
		case i > 0 && at+1+len(word) > columns:
			p.add("\n%*s", len(heading), "")
			at = len(heading)
		case i > 0:
			p.WriteString(" ")
			at++
		}
		p.WriteString(strings.ReplaceAll(word, "\x00", " "))
		at += len(word)
	}
	p.WriteString("\n")
}

func groupOf(f cli.Flag) string {
	if c, ok := f.(cli.CategorizableFlag); ok {
		return c.GetCategory()
	}
	return ""
}

// columnsOf returns how the help shows a flag. The help does not list --help.
func columnsOf(f cli.Flag) (name, usage string, visible bool) {
	if v, hides := f.(cli.VisibleFlag); hides && !v.IsVisible() || f.Names()[0] == "help" {
		return "", "", false
	}
	name, usage = described(f)
	return name, usage, true
}

// described returns the name of a flag with the word in backquotes, which stands for its value, and what it does.
func described(f cli.Flag) (name, usage string) {
	name = "--" + f.Names()[0]
	d, ok := f.(cli.DocGenerationFlag)
	if !ok {
		return name, ""
	}
	usage = d.GetUsage()
	if before, rest, ok := strings.Cut(usage, "`"); ok {
		value, after, _ := strings.Cut(rest, "`")
		name += " " + value
		if usage, ok = strings.CutPrefix(after, ": "); !ok || before != "" {
			usage = before + value + after
		}
	}
	if text := d.GetDefaultText(); d.TakesValue() && text != "" {
		usage += " (default " + strings.Trim(text, `"`) + ")"
	}
	return name, usage
}
