package launch

import (
	"bytes"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

const (
	maxScript = 1 << 20 // the largest size of a file that is searched
	maxWords  = 256     // words of a command's arguments that are tried as file names
)

// Places are the places in which the user of a job may have chosen the networks of a launcher or library.
type Places struct {
	Environ  []string // of the command, without the variables that this package adds
	Args     []string // the command with its arguments
	Command  string   // the path of its program
	Dir      string   // its working directory
	Launcher string   // the path that [Configured] returned
	Root     fs.FS    // the root of the file system
}

// Texts is what [Places.Texts] found: the name of each place, followed by its text.
type Texts []string

// Settled returns which choice of the user a variable would contradict or override, and where it was found. Open MPI
// refuses interfaces to include beside interfaces to exclude, even an empty list, and prefers the environment to its
// files. The variable itself in the environment does not count, because [Merge] keeps the user's value.
func (t Texts) Settled(variable string) string {
	for _, setting := range strings.Fields(ruledOutBy(variable)) {
		for i := 0; i < len(t); i += 2 {
			if t[i] != theVariable+variable && mentions(t[i+1], setting) {
				return setting + " is in " + t[i]
			}
		}
	}
	return ""
}

// ruledOutBy returns the names that a user sets to make the same choice as a variable or option of ours.
func ruledOutBy(variable string) string {
	for _, l := range launchers {
		if i := slices.IndexFunc(l.Choices, func(c choice) bool { return c.variable == variable }); i >= 0 {
			return l.Choices[i].names
		}
	}
	return ""
}

// theVariable is the beginning of the name of a place that is an environment variable.
const theVariable = "the variable "

// mentions reports whether a text sets something: the name of a parameter or option as a whole word, or a variable that
// gets a value, but not in a comment. `-x NAME` and $NAME only forward or read a variable.
func mentions(text, setting string) bool {
	for {
		before, after, found := strings.Cut(text, setting)
		if !found {
			return false
		}
		line := strings.TrimLeft(before[strings.LastIndexByte(before, '\n')+1:], " \t")
		end := strings.TrimLeft(after, "\"'] \t")
		value := strings.HasPrefix(end, "=") && !strings.HasPrefix(end, "==") && !strings.HasSuffix(line, "$") &&
			!strings.HasSuffix(line, "${")
		switch {
		case strings.HasPrefix(line, "#"):
			_, after, _ = strings.Cut(after, "\n")
		case after != "" && isWord(rune(after[0])):
		case strings.HasSuffix(line, "_MCA_") && value:
			return true
		case line != "" && isWord(rune(line[len(line)-1])):
		case value || setting[0] < 'A' || setting[0] > 'Z':
			return true
		}
		text = after
	}
}

// Configured returns the program whose prefix holds the configuration of a launcher, with links resolved; "" if there
// is none.
func Configured(environ []string) string {
	for _, l := range launchers {
		if l.Files.prefixOf == "" {
			continue
		}
		if file, err := Look(l.Files.prefixOf, environ, ""); err == nil {
			return resolved(file)
		}
	}
	return ""
}

// resolved returns the target of links, or the file itself if it cannot be resolved.
func resolved(file string) string {
	if target, err := filepath.EvalSymlinks(file); err == nil {
		return target
	}
	return file
}

// Texts reads the environment, the arguments, the scripts among them, and the files from which launchers and libraries
// read settings.
func (p *Places) Texts() (texts Texts) {
	for _, kv := range p.Environ {
		name, _, _ := strings.Cut(kv, "=")
		texts = append(texts, theVariable+name, kv)
	}
	args := strings.Join(p.Args, "\n")
	texts = append(texts, "the arguments of the command", args)

	names := p.Command + " " + p.Launcher
	dirs, conf := "/etc", ""
	prefix := path.Join(p.Launcher, "../..")
	for _, l := range launchers {
		f := l.Files
		for _, file := range strings.Fields(f.home) {
			names += " " + Value(p.Environ, "HOME") + "/" + file
		}
		for _, file := range strings.Fields(f.dir) {
			names += " " + p.Dir + "/" + file
		}
		for _, variable := range strings.Fields(f.variables) {
			names += " " + Value(p.Environ, variable)
		}
		conf += " " + f.conf
		if f.prefixVariable != "" {
			dirs += " " + Value(p.Environ, f.prefixVariable) + "/etc"
		}
		if p.Launcher == "" || prefix == "/usr" || strings.HasPrefix(prefix, "/usr/lib") {
			dirs += " " + f.system
		}
	}
	dirs += " " + prefix + "/etc"
	dir, previous := p.Dir, ""
	words := strings.FieldsFunc(args, betweenNames)
	for _, word := range words[:min(len(words), maxWords)] {
		name := word
		if !path.IsAbs(name) {
			name = path.Join(dir, name)
		}
		names += " " + name
		switch {
		case previous == "cd":
			dir = name
		case strings.HasSuffix(previous, "-prefix"):
			dirs += " " + name + "/etc"
		case path.IsAbs(word) && IsLauncher(word):
			dirs += " " + path.Join(name, "../../etc")
		}
		previous = word
	}
	for _, dir := range strings.Fields(dirs) {
		for _, file := range strings.Fields(conf) {
			names += " " + dir + "/" + file
		}
	}
	for _, name := range strings.FieldsFunc(names, betweenNames) {
		if text := p.read(name); text != "" {
			texts = append(texts, name, text)
		}
	}
	return texts
}

// betweenNames reports whether a character of a command line can separate two file names.
func betweenNames(r rune) bool { return strings.ContainsRune(" \t\n\r;&|()<>'\"=,:", r) }

// read returns the text of a file; "" if it is too large for a script, binary, or not regular (a pipe would block).
func (p *Places) read(name string) string {
	name = strings.TrimPrefix(path.Clean(name), "/")
	info, err := fs.Stat(p.Root, name)
	if err != nil || !info.Mode().IsRegular() || info.Size() == 0 || info.Size() > maxScript {
		return ""
	}
	b, _ := fs.ReadFile(p.Root, name)
	if bytes.IndexByte(b, 0) >= 0 {
		return ""
	}
	return string(b)
}
