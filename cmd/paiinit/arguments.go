package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/paiinit/paiinit/cmdline"
	"github.com/paiinit/paiinit/launch"
)

// argumentSettings say how the arguments and the start of COMMAND differ between ranks.
type argumentSettings struct {
	template   bool   // they have words such as {rank}
	leaderArgs string // more of them on rank 0
	workerArgs string // and on the other ranks
	ready      string // what rank 0's command must do before the other ranks start theirs
	firstLine  string // a line of a shell that rank 0 runs before its command, and until its end
}

// moreArguments returns what --leader-args or --worker-args adds on a rank.
func (s *argumentSettings) moreArguments(rank int) ([]string, error) {
	flag, text := "leader-args", s.leaderArgs
	if rank != 0 {
		flag, text = "worker-args", s.workerArgs
	}
	words, err := launch.SplitWords(text)
	if err != nil {
		return nil, cmdline.Errorf("--%s (%s) is %q: %w", flag, cmdline.Twin(flag), text, err)
	}
	return words, nil
}

// checkArguments refuses arguments that rank 0 or another rank could not be given. It is not part of complete, because
// the command of a launched rank, which passThrough runs, is not a job's.
func (s *settings) checkArguments() error {
	if err := s.checkReady(); err != nil {
		return err
	}
	for rank, text := range []string{s.leaderArgs, s.workerArgs} {
		more, err := s.moreArguments(rank)
		if err != nil {
			return err
		}
		if text != "" && s.exec != execAll {
			flag := []string{"leader-args", "worker-args"}[rank]
			return cmdline.Errorf("--%s (%s) needs --exec leader or --exec all", flag, cmdline.Twin(flag))
		}
		line := slices.Concat(s.command, more)
		if _, err := s.fillWords(launch.Words{}, line[min(1, len(line)):]); err != nil {
			return err
		}
	}
	return nil
}

// fillWords replaces the words of arguments, with --template.
func (s *settings) fillWords(w launch.Words, args []string) ([]string, error) {
	if !s.template {
		return args, nil
	}
	args, err := w.Fill(args)
	if unknown, ok := errors.AsType[*launch.WordError](err); ok {
		usage := &usageError{Err: fmt.Errorf("--template (%s): %w", cmdline.Twin("template"), err)}
		if near := cmdline.Closest(unknown.Word, unknown.Known); near != "" {
			usage.Meant = "{" + near + "}"
		}
		return nil, usage
	}
	return args, nil
}

// words returns what the words of arguments stand for on this rank.
func (a *agreement) words() launch.Words {
	self := a.self()
	w := launch.Words{Position: a.position(), Alias: self.Alias, Host: self.Addr.Addr().String(), Slots: self.Slots}
	w.Role, w.Index = self.Role, self.Index
	if w.Index < 0 { // the alias has the rank, too
		w.Index = self.Rank
	}
	return w
}

// commandLine returns COMMAND and its arguments as this rank runs it in an environment. The name of COMMAND has no
// words, because COMMAND is looked for before the rank is known.
func (a *agreement) commandLine(environ []string) ([]string, error) {
	more, err := a.moreArguments(a.self().Rank)
	if err != nil {
		return nil, err
	}
	line, replaced := launch.ExpandAzureWords(slices.Concat(a.settings.command, more), environ, len(a.roster.Members))
	for _, v := range replaced {
		a.log.Debug("replaced a word of the Azure ML job specification with its value",
			"phase", "launch", "word", v.Name, "value", v.Value)
	}
	args, err := a.fillWords(a.words(), line[1:])
	return append(line[:1:1], args...), err
}
