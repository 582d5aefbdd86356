package envspec

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// VarError says that an environment is contradictory or incomplete: the variable, its value, what is wrong, and what to
// do.
type VarError struct {
	// System is the scheduler's name, empty if none was chosen yet.
	System string
	// Var is the variable, or the flag ("--role").
	Var string
	// Value is its value, empty if it is not set.
	Value string
	// Problem is a sentence that names the variable and shows the value.
	Problem string
	// Advice says what to do; it may be empty.
	Advice string
	// Job is the rest of the environment, if that gives this container's place in the job and the places of the others:
	// the caller can then report the error to them. Nil otherwise.
	Job *Job
}

// Error returns "system: problem; advice" on one line, without the system where only paiinit's own variables count.
func (e *VarError) Error() string {
	s := e.Problem
	if e.System != "" && e.System != "explicit" && e.System != "single" {
		s = e.System + ": " + s
	}
	if e.Advice != "" {
		s += "; " + e.Advice
	}
	return s
}

// catch runs f and returns the error with which it panics.
func catch(f func()) (err *VarError) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case *VarError:
			err = p
		default:
			panic(p)
		}
	}()
	f()
	return nil
}

// variable is a value and its source.
type variable struct {
	name  string // as the user knows it, such as "PAIINIT_ROLE" or "--role"
	value string // trimmed
	file  string // the file that sets it, if it is not in the environment
}

func (v variable) source() string {
	if v.file != "" {
		return v.name + " (" + v.file + ")"
	}
	return v.name
}

// shown returns the value for a sentence, shortened if it is long.
func (v variable) shown() string { return strings.Trim(quote(v.value), `"`) }

// fail returns an error about v. Its sentence must show v's name and value.
func (r *reader) fail(v variable, advice, problem string, args ...any) *VarError {
	problem = fmt.Sprintf(problem, args...)
	return &VarError{System: r.system, Var: v.name, Value: v.value, Problem: problem, Advice: advice}
}

// bad returns an error about the whole value of v: problem continues "NAME=value".
func (r *reader) bad(v variable, advice, problem string, args ...any) *VarError {
	return r.fail(v, advice, "%s=%s %s", v.name, quotePlain(v.value), fmt.Sprintf(problem, args...))
}

// wrong returns an error about a part of the value of v.
func (r *reader) wrong(v variable, advice, problem string, args ...any) *VarError {
	return r.fail(v, advice, "%s=%s: %s", v.name, quote(v.value), fmt.Sprintf(problem, args...))
}

// missing returns an error that none of names is set. The first one is the error's variable.
func (r *reader) missing(advice string, names ...string) *VarError {
	problem := names[0] + " is not set"
	switch last := len(names) - 1; {
	case last == 1:
		problem = "neither " + names[0] + " nor " + names[1] + " is set"
	case last > 1:
		problem = "none of " + strings.Join(names[:last], ", ") + " and " + names[last] + " is set"
	}
	return r.fail(variable{name: names[0]}, advice, "%s", problem)
}

// shownBytes bounds how much of a value a message shows: a host list may be 128 KiB long.
const shownBytes = 160

// quote returns a value in quotes, on one line, shortened if it is long.
func quote(s string) string {
	if len(s) > shownBytes {
		return strconv.Quote(strings.ToValidUTF8(s[:shownBytes], "")) + "..."
	}
	return strconv.Quote(s)
}

// quoteAll returns a list with each item in quotes, shortened if it is long.
func quoteAll(list []string) string {
	const shown = 24
	var quoted []string
	for i, s := range list {
		if i == shown {
			quoted = append(quoted, "...")
			break
		}
		quoted = append(quoted, quote(s))
	}
	return strings.Join(quoted, ",")
}

func isControl(r rune) bool { return unicode.IsControl(r) || r == unicode.ReplacementChar }

// part returns an error that shows only value, a part of v.
func (r *reader) part(v variable, value, advice, problem string, args ...any) *VarError {
	return r.fail(variable{name: v.name, value: value}, advice, v.name+": "+problem, args...)
}

// badJSON returns an error that shows where a value stops being JSON.
func (r *reader) badJSON(v variable, err error) *VarError {
	at, problem := int64(len(v.value)), "invalid JSON"
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		at = syntax.Offset
	} else if kind, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		at, problem = kind.Offset, "unexpected JSON"
		err = errors.New(kind.Value + " is out of place")
	}
	near := v.value[max(0, min(int(at), len(v.value))-20):min(int(at)+20, len(v.value))]
	near = strings.ToValidUTF8(near, "")
	return r.part(v, near, "", "%s at byte %d: %v, near %s", problem, at, err, quote(near))
}
