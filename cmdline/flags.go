// Package cmdline makes flags for urfave/cli, and hides what that library lacks: environment twins that come from any
// environment, flags behind words, flags with a few values, and errors that say which values are accepted.
package cmdline

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
)

// UsageError is a mistake on the command line.
type UsageError struct {
	Err   error
	Meant string // the flag that the user probably meant, or ""
}

func (e *UsageError) Error() string { return e.Err.Error() }
func (e *UsageError) Unwrap() error { return e.Err }

// Errorf returns a UsageError with a text as by fmt.Errorf.
func Errorf(format string, args ...any) error { return &UsageError{Err: fmt.Errorf(format, args...)} }

// Text returns a flag of run that sets dest, unless dest is nil. The help describes its default in words.
func Text(dest *string, name, value, usage, otherwise string) cli.Flag {
	return &cli.StringFlag{Name: name, Usage: valued(value, usage), DefaultText: otherwise, Destination: dest}
}

// Bool returns a flag of run that sets dest.
func Bool(dest *bool, name, usage string) cli.Flag {
	return &cli.BoolFlag{Name: name, Usage: usage, Destination: dest}
}

// Duration returns a flag of run that sets dest. The help shows text as its default.
func Duration(dest *time.Duration, name, usage string, value time.Duration, text string) cli.Flag {
	return &cli.DurationFlag{
		Name: name, Usage: valued("TIME", usage), Value: value, DefaultText: text, Action: NotNegative(name),
		Destination: dest,
	}
}

// Choice returns a flag of run that sets dest to one of the words. The first is the default.
func Choice(dest *string, name, value, usage string, words ...string) cli.Flag {
	*dest = words[0]
	return &cli.GenericFlag{Name: name, Usage: valued(value, usage), Value: &choice{dest, words}}
}

// Optional returns a flag that sets dest to one of the words: to the first where no value follows it.
func Optional(dest *string, name, usage string, words ...string) cli.Flag {
	return &cli.GenericFlag{Name: name, Usage: usage, Value: &optional{choice{dest, words}}}
}

// optional is the value of such a flag. The library gives a flag without a value the value of a switch, "true".
type optional struct{ choice }

func (o *optional) IsBoolFlag() bool { return true }

func (o *optional) Set(word string) error {
	if word == "true" {
		word = o.words[0]
	}
	return o.choice.Set(word)
}

// Help returns a flag like the library's own, which is a global variable that every call writes to.
func Help() cli.Flag {
	return &cli.BoolFlag{Name: "help", Aliases: []string{"h"}, Usage: "show this help", DisableDefaultText: true}
}

// Twin returns the name of the environment twin of a flag.
func Twin(flag string) string {
	return "PAIINIT_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// Twins returns the environment twins of flags.
func Twins(flags []cli.Flag) (names []string) {
	for _, f := range flags {
		names = append(names, Twin(f.Names()[0]))
	}
	return names
}

// Hidden leaves flags out of the help.
func Hidden(flags []cli.Flag) []cli.Flag {
	for _, f := range flags {
		if _, hidden := inHelp(f); hidden != nil {
			*hidden = true
		}
	}
	return flags
}

// inHelp returns where a flag stands in the help: its group, and whether it is left out. The library has no method for
// either. The results are nil for a type that this program does not use.
func inHelp(f cli.Flag) (group *string, hidden *bool) {
	switch f := f.(type) {
	case *cli.StringFlag:
		return &f.Category, &f.Hidden
	case *cli.BoolFlag:
		return &f.Category, &f.Hidden
	case *cli.DurationFlag:
		return &f.Category, &f.Hidden
	case *cli.GenericFlag:
		return &f.Category, &f.Hidden
	}
	return nil, nil
}

// valued puts the word that stands for a flag's value before its help, as the help expects it.
func valued(value, usage string) string { return "`" + value + "`: " + usage }

// SetTwins sets each of the flags that the command line does not give to the value of its environment twin.
func SetTwins(c *cli.Context, flags []cli.Flag, lookup func(variable string) string) error {
	var errs []error
	for _, f := range flags {
		name := f.Names()[0]
		v := lookup(Twin(name))
		if v != "" && !c.IsSet(name) && c.Set(name, v) != nil {
			errs = append(errs, refusal(c, name, v))
		}
	}
	return errors.Join(errs...)
}

// NotNegative returns an action that refuses negative durations, which the library accepts.
func NotNegative(name string) func(*cli.Context, time.Duration) error {
	return func(c *cli.Context, d time.Duration) error {
		if d < 0 {
			return refusal(c, name, d.String())
		}
		return nil
	}
}

// choice is the value of a flag that accepts a few words.
type choice struct {
	word  *string
	words []string
}

func (c *choice) String() string { return *c.word }

func (c *choice) Set(word string) error {
	if !slices.Contains(c.words, word) {
		return fmt.Errorf("want one of %s", strings.Join(c.words, ", "))
	}
	*c.word = word
	return nil
}

// OnUsageError turns the library's error about a flag into an error that says what is accepted, or which flag was
// probably meant. Package flag has no error types for it, only text.
func OnUsageError(c *cli.Context, err error, _ bool) error {
	text := err.Error()
	for _, format := range []string{"invalid value %q for flag -%s", "invalid boolean value %q for -%s"} {
		var value, name string
		if n, _ := fmt.Sscanf(text, format, &value, &name); n == 2 {
			return refusal(c, strings.TrimSuffix(name, ":"), value)
		}
	}
	if name, ok := strings.CutPrefix(text, "flag needs an argument: -"); ok {
		return Errorf("--%s needs a value", name)
	}
	name, ok := strings.CutPrefix(text, "flag provided but not defined: -")
	if !ok {
		return &UsageError{Err: err}
	}
	var names []string
	for _, f := range c.Command.Flags {
		names = append(names, f.Names()[0])
	}
	meant := cmp.Or(Closest(name, names), completed(name, names))
	if meant != "" {
		meant = "--" + meant
	}
	return &UsageError{Err: errors.New("unknown flag --" + name), Meant: meant}
}

// completed returns the only one of the names that begins with a word, else "".
func completed(word string, names []string) string {
	begins := func(name string) bool { return strings.HasPrefix(name, word) }
	i := slices.IndexFunc(names, begins)
	if i < 0 || slices.ContainsFunc(names[i+1:], begins) {
		return ""
	}
	return names[i]
}

// OnlyWords returns an error unless a command got the words that it takes: args names them, "" = none.
func OnlyWords(c *cli.Context, args string) error {
	switch want := len(strings.Fields(args)); {
	case c.NArg() == want:
		return nil
	case c.NArg() < want:
		return Errorf("%s needs %s", c.Command.Name, args)
	}
	return Errorf("%s takes %s, but got %q", c.Command.Name, cmp.Or(args, "no word"), c.Args().Slice())
}

// refusal returns the error for a value that a flag or its twin does not accept.
func refusal(c *cli.Context, name, value string) error {
	where := "--" + name
	if c.Command.Name == "run" && name != "help" {
		where += " (" + Twin(name) + ")"
	}
	err := errors.New("want another value")
	switch f := named(c.Command.Flags, name).(type) {
	case *cli.DurationFlag:
		err = errors.New("want a time such as 90s or 10m")
	case *cli.BoolFlag:
		err = errors.New("want true or false")
	case *cli.GenericFlag:
		err = f.Value.Set(value)
	}
	return Errorf("%s is %q: %w", where, value, err)
}
