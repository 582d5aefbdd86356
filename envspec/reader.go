package envspec

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

// maxTasks bounds counts and lists. About 10,000 tasks fill the 2 MiB that Linux allows for an environment.
const maxTasks = 1 << 16

// reader looks up variables and files, and records where each value came from. Its methods serve all schedulers; a
// function that only one scheduler needs is in the file of that scheduler.
//
// A function that cannot go on panics with a *VarError, and Read returns that, as the parsers of encoding/json and
// text/template do: so a scheduler's reader is the sequence of what it reads. No panic leaves the package.
type reader struct {
	ctx      context.Context // of the call of Read that made the reader
	in       Input
	system   string
	vars     map[string]string
	again    map[string]string // the second, different value of a name
	files    map[string]string // the file that sets a variable, if it is not in the environment
	sources  map[string]string
	warnings []string
	warned   map[string]bool

	told
}

func newReader(ctx context.Context, in Input) *reader {
	r := &reader{
		ctx: ctx, in: in,
		vars: make(map[string]string, len(in.Environ)), again: make(map[string]string), files: make(map[string]string),
		sources: make(map[string]string), warnings: []string{}, warned: make(map[string]bool),
		told: newTold(),
	}
	if in.Files == nil {
		r.in.Files = embed.FS{} // no files
	}
	for _, entry := range in.Environ {
		name, value, ok := strings.Cut(entry, "=")
		if !ok || name == "" {
			continue
		}
		if first, dup := r.vars[name]; !dup {
			r.vars[name] = value
		} else if clean(first) != clean(value) {
			r.again[name] = value
		}
	}
	return r
}

// clean removes blanks and byte order marks, which shells, YAML and editors leave around a value.
func clean(s string) string {
	return strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(s), "\ufeff"))
}

// isServiceLink says whether Kubernetes set value: it sets NAME_PORT for every Service of the namespace.
func isServiceLink(value string) bool {
	protocol, _, ok := strings.Cut(value, "://")
	return ok && (protocol == "tcp" || protocol == "udp" || protocol == "sctp")
}

// get returns the first of names that is set. A blank value, or a service link in place of a port, counts as not set.
func (r *reader) get(names ...string) (variable, bool) {
	for _, name := range names {
		if value := clean(r.in.Flags[name]); value != "" && strings.HasPrefix(name, "PAIINIT_") {
			flag := strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(name, "PAIINIT_")), "_", "-")
			return variable{name: "--" + flag, value: value}, true
		}
		value := clean(r.vars[name])
		if value == "" {
			continue
		}
		if service, isPort := strings.CutSuffix(name, "_PORT"); isPort && isServiceLink(value) {
			service = strings.ReplaceAll(strings.ToLower(service), "_", "-")
			r.warn("%s=%s is a Kubernetes service link (Service %q), ignored", name, quote(value), service)
			continue
		}
		if other, ok := r.again[name]; ok {
			r.warn("%s is set twice, to %s and to %s; the first one counts", name, quote(value), quote(clean(other)))
		}
		return variable{name: name, value: value, file: r.files[name]}, true
	}
	return variable{}, false
}

// has says whether any of names is set.
func (r *reader) has(names ...string) bool {
	for _, name := range names {
		if clean(r.in.Flags[name]) != "" || clean(r.vars[name]) != "" {
			return true
		}
	}
	return false
}

// number returns the first of names that is set, which must be a number in low..high. ok says whether one is set.
func (r *reader) number(low, high int, names ...string) (n int, v variable, ok bool) {
	v, ok = r.get(names...)
	if ok {
		n = r.parseNumber(v, low, high)
	}
	return n, v, ok
}

// need is get for names of which one must be set.
func (r *reader) need(advice string, names ...string) variable {
	v, ok := r.get(names...)
	if !ok {
		panic(r.missing(advice, names...))
	}
	return v
}

// needNumber is number for names of which one must be set.
func (r *reader) needNumber(advice string, low, high int, names ...string) (int, variable) {
	v := r.need(advice, names...)
	return r.parseNumber(v, low, high), v
}

func (r *reader) parseNumber(v variable, low, high int) int {
	n, err := strconv.Atoi(v.value)
	if err != nil {
		panic(r.bad(v, "", "is not a number"))
	}
	if n < low || n > high {
		panic(r.bad(v, "", "is outside %d..%d", low, high))
	}
	return n
}

// hint parses a count that is optional: a value that does not parse causes a warning.
func (r *reader) hint(v variable, text string) (int, bool) {
	n, err := strconv.Atoi(clean(text))
	if err != nil || n < 0 || n > maxTasks {
		r.warn("%s=%s: %s is not a count, ignored", v.name, quote(v.value), quote(text))
		return 0, false
	}
	return n, true
}

// note records the source of a field.
func (r *reader) note(field string, v variable) { r.sources[field] = v.source() }

// warn records a warning, once for each text.
func (r *reader) warn(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !r.warned[text] {
		r.warned[text] = true
		r.warnings = append(r.warnings, text)
	}
}

// file returns the content of an absolute path. ok is false if it cannot be read.
func (r *reader) file(path string) (string, bool) {
	b, err := fs.ReadFile(r.in.Files, strings.TrimPrefix(path, "/"))
	return string(b), err == nil
}

// entries returns the sorted names in the directory at an absolute path; nil if it cannot be read.
func (r *reader) entries(path string) []string {
	list, err := fs.ReadDir(r.in.Files, strings.TrimPrefix(path, "/"))
	if err != nil {
		return nil
	}
	names := make([]string, len(list))
	for i, e := range list {
		names[i] = e.Name()
	}
	return names
}

// exists says whether there is a file at an absolute path, readable or not. Directories and links to directories, such
// as ..data in a mounted Kubernetes Secret, do not count.
func (r *reader) exists(path string) bool {
	info, err := fs.Stat(r.in.Files, strings.TrimPrefix(path, "/"))
	return err == nil && !info.IsDir()
}

// sees returns the first of names that is set, or "".
func (r *reader) sees(names ...string) string {
	v, _ := r.get(names...)
	return v.name
}
