// Package reference writes what describes the command line outside of the program: its man page, and the completions of
// shells. Both come from the flags and commands that --help shows. The program does not import it; a test of
// cmd/paiinit writes the files.
package reference

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/paiinit/paiinit/cmdline"
)

// run is the command that a command line means if it names none.
const run = "run"

// words is what the words of a command are, besides its flags.
type words int

const (
	none      words = iota // and also names that only people know
	aCommand               // COMMAND ARG...
	aHost                  // HOST COMMAND ARG...
	directory              // DIR
)

// command is a command of the program.
type command struct {
	name, usage string
	synopsis    string   // after "paiinit "
	text        string   // paragraphs
	examples    []string // lines
	words       words
	rows        []cmdline.Row
}

// commands returns the visible commands of app.
func commands(app *cli.App) (all []command) {
	for _, c := range app.Commands {
		if c.Hidden {
			continue
		}
		one := command{
			name: c.Name, usage: c.Usage, synopsis: c.UsageText, text: c.Description, rows: cmdline.Rows(c.Flags),
		}
		if c.CustomHelpTemplate != "" { // a title, a line "Usage:", then what Description is elsewhere
			_, help, _ := strings.Cut(c.CustomHelpTemplate, "Usage: ")
			one.synopsis, one.text, _ = strings.Cut(help, "\n")
		}
		text, examples, _ := strings.Cut(one.text, "Examples:\n")
		one.synopsis = strings.TrimPrefix(one.synopsis, app.Name+" ")
		one.text = strings.TrimSpace(text)
		for line := range strings.Lines(examples) {
			one.examples = append(one.examples, strings.TrimSpace(line))
		}
		switch {
		case strings.Contains(c.ArgsUsage, "HOST"):
			one.words = aHost
		case strings.Contains(c.ArgsUsage, "COMMAND"):
			one.words = aCommand
		case strings.Contains(c.ArgsUsage, "DIR"):
			one.words = directory
		}
		all = append(all, one)
	}
	return all
}

// named returns the command of a name.
func named(all []command, name string) command {
	return all[slices.IndexFunc(all, func(c command) bool { return c.name == name })]
}

// value is what may follow a flag.
type value struct {
	words string // separated by spaces
	kind  string // "file", "directory", "command", or "" = unknown
}

// valueOf returns what may follow a flag.
func valueOf(r cmdline.Row) value {
	v := value{words: strings.Join(r.Words, " ")}
	switch {
	case v.words != "":
	case r.Value == "FILE":
		v.kind = "file"
	case r.Value == "DIR":
		v.kind = "directory"
	case r.Value == "COMMAND":
		v.kind = "command"
	}
	return v
}

// flags returns the flags of all commands, each once. A flag of the same name means the same kind of value everywhere.
func flags(all []command) (rows []cmdline.Row) {
	for _, c := range all {
		for _, r := range c.rows {
			if !slices.ContainsFunc(rows, func(seen cmdline.Row) bool { return seen.Name == r.Name }) {
				rows = append(rows, r)
			}
		}
	}
	return rows
}

// brief returns the text about a flag without its default, as a shell shows it beside the flag.
func brief(r cmdline.Row) string {
	text, _, _ := strings.Cut(r.Usage, " (default ")
	return text
}
