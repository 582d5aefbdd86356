package cmdline

import (
	"strings"

	"github.com/urfave/cli/v2"
)

// Row is a flag as the help, the man page and the completions of shells describe it.
type Row struct {
	Name     string   // without dashes
	Aliases  []string // without dashes
	Value    string   // the word that stands for its value; "" = a switch
	Usage    string   // what it does, with its default
	Group    string   // "" = none
	Words    []string // the values that it accepts, if they are few
	Optional bool     // its value may be left out, and can only follow a "="
}

// Rows returns what describes flags, also hidden ones, without --help.
func Rows(flags []cli.Flag) (rows []Row) {
	for _, f := range flags {
		names := f.Names()
		if names[0] == "help" {
			continue
		}
		r := Row{Name: names[0], Aliases: names[1:], Group: groupOf(f)}
		name, usage := described(f)
		_, r.Value, _ = strings.Cut(name, " ")
		r.Usage = usage
		if g, ok := f.(*cli.GenericFlag); ok {
			switch v := g.Value.(type) {
			case *choice:
				r.Words = v.words
			case *optional:
				r.Words, r.Optional = v.words, true
			}
		}
		rows = append(rows, r)
	}
	return rows
}
