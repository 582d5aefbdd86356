package inspect

import (
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// entrypoint reports what becomes of the script that is the ENTRYPOINT of many images: it sets variables or starts
// services, then runs its arguments.
func (e *examination) entrypoint() Finding {
	const name = "entrypoint"
	if script := e.scriptOfCommand(); script != "" {
		switch {
		case e.ExecAll:
			return pass(name, script+" is part of COMMAND, which every rank runs")
		case e.job.Size == 1 && e.err == nil:
			return pass(name, script+" is part of COMMAND: in a job of several ranks it would run on rank 0 alone")
		}
		return warning(name, script+" is part of COMMAND: it runs on rank 0 alone, and what it sets does not reach "+
			"the programs on other ranks", "to run it in every container, put it "+before(script))
	}
	scripts := e.scripts()
	switch {
	case len(scripts) == 0:
		return pass(name, "the image has no script that an ENTRYPOINT would name")
	case e.Running != "": // this check has not the environment with which the container began
		return pass(name, scripts[0]+"; not known whether it has run")
	case variable(e.Environ, "PWD") != "": // every shell sets it
		return pass(name, scripts[0]+"; a shell ran before paiinit, probably this script")
	}
	return warning(name, scripts[0]+" is in the image and has not run: paiinit replaces the image's own ENTRYPOINT",
		"nothing, if the job does not need it; else put it "+before(scripts[0]))
}

func before(script string) string {
	return fmt.Sprintf("before paiinit: ENTRYPOINT [%q, \"paiinit\", \"--\"]", script)
}

// scriptOfCommand returns the script with which a COMMAND begins: that of this check, or of the paiinit that is process
// 1 and runs this check.
func (e *examination) scriptOfCommand() string {
	lines := [][]string{e.Command}
	if e.Running != "" {
		lines = append(lines, strings.Split(strings.Trim(e.read("proc/1/cmdline"), "\x00"), "\x00")[1:])
	}
	for _, line := range lines {
		for _, word := range line { // flags and their values may precede the program
			file, err := e.Look(word, e.Environ, e.Dir)
			if err != nil {
				continue
			}
			if RunsArguments(e.Root, file) {
				return file
			}
			break
		}
	}
	return ""
}

// scripts returns the scripts in the usual places that COMMAND does not name.
func (e *examination) scripts() (found []string) {
	for _, dir := range []string{"", "usr/local/bin", "usr/bin", "opt", "opt/*"} {
		names, _ := fs.Glob(e.Root, path.Join(dir, "*entrypoint.sh")) // the pattern is correct
		for _, name := range names {
			if file := "/" + name; !slices.Contains(e.Command, file) && RunsArguments(e.Root, file) {
				found = append(found, file)
			}
		}
	}
	return found
}

// RunsArguments reports whether a file is a shell script that ends by executing its arguments, as the scripts do that
// an ENTRYPOINT names.
func RunsArguments(root fs.FS, file string) bool {
	f, err := root.Open(strings.TrimPrefix(path.Clean(file), "/"))
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	start := make([]byte, 2)
	if _, err := io.ReadFull(f, start); err != nil || string(start) != "#!" {
		return false
	}
	const longest = 64 << 10
	text, _ := io.ReadAll(io.LimitReader(f, longest))
	for line := range strings.Lines(string(text)) {
		code, _, _ := strings.Cut(line, " #")
		before, after, ok := strings.Cut(code, "exec ")
		if ok && !strings.HasPrefix(strings.TrimSpace(before), "#") &&
			(strings.Contains(after, "$@") || strings.Contains(after, "${@")) {
			return true
		}
	}
	return false
}
