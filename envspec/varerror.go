package envspec

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// VarError says that an environment is contradictory or incomplete: which variable, what it holds, what is wrong with
// that, and what to do.
type VarError struct {
	// System is the scheduler's name, empty if none had been chosen yet.
	System string
	// Var is the variable, or the flag ("--role").
	Var string
	// Value is what it holds, empty if it is not set.
	Value string
	// Problem is a sentence that names the variable and shows the value.
	Problem string
	// Advice is what to do about it; may be empty.
	Advice string
	// Job is what the environment says otherwise, if that tells this container's place in the job and where the others
	// are: then they can be told. Nil if it does not.
	Job *Job
}

// Error returns "system: problem; advice" on one line.
func (e *VarError) Error() string {
	s := e.Problem
	if e.System != "" {
		s = e.System + ": " + s
	}
	if e.Advice != "" {
		s += "; " + e.Advice
	}
	return s
}

// variable is a value and where it was found.
type variable struct {
	name  string // as the user knows it: "PAIINIT_ROLE" or "--role"
	value string // trimmed
	file  string // the file that sets it, if it is not in the environment
}

func (v variable) source() string {
	if v.file != "" {
		return v.name + " (" + v.file + ")"
	}
	return v.name
}

// shown is the value in a sentence, as much of it as helps.
func (v variable) shown() string { return strings.Trim(quote(v.value), `"`) }

// fail returns an error with a sentence of its own, which must show v's name and value.
func (r *reader) fail(v variable, advice, problem string, args ...any) *VarError {
	return &VarError{System: r.system, Var: v.name, Value: v.value, Problem: fmt.Sprintf(problem, args...), Advice: advice}
}

// bad returns an error that v "is" or "has" something: problem goes on from the value.
func (r *reader) bad(v variable, advice, problem string, args ...any) *VarError {
	return r.fail(v, advice, "%s=%s %s", v.name, quotePlain(v.value), fmt.Sprintf(problem, args...))
}

// wrong returns an error about a part of the value of v.
func (r *reader) wrong(v variable, advice, problem string, args ...any) *VarError {
	return r.fail(v, advice, "%s=%s: %s", v.name, quote(v.value), fmt.Sprintf(problem, args...))
}

// missing returns an error about variables of which none is set. names[0] is the one to name first.
func (r *reader) missing(advice string, names ...string) *VarError {
	problem := names[0] + " is not set"
	if others := names[1:]; len(others) > 0 {
		problem += " (" + strings.Join(others, ", ") + " neither)"
	}
	return r.fail(variable{name: names[0]}, advice, "%s", problem)
}

// shownBytes is how much of a value a message shows: a host list may be 128 KiB long.
const shownBytes = 160

// quote shows a value on one line.
func quote(s string) string {
	if len(s) > shownBytes {
		return strconv.Quote(strings.ToValidUTF8(s[:shownBytes], "")) + "..."
	}
	return strconv.Quote(s)
}

// quoteAll shows a list, as much of it as helps.
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

// part returns an error about a part of v, which is too long to be shown whole.
func (r *reader) part(v variable, value, advice, problem string, args ...any) *VarError {
	return r.fail(variable{name: v.name, value: value}, advice, problem, args...)
}

// badJSON tells where a value stops being JSON.
func (r *reader) badJSON(v variable, err error) *VarError {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	at := int64(len(v.value))
	problem := "invalid JSON"
	switch {
	case errors.As(err, &syntax):
		at = syntax.Offset
	case errors.As(err, &kind):
		at, problem = kind.Offset, "unexpected JSON"
		err = errors.New(kind.Value + " is out of place")
	}
	near := v.value[max(0, min(int(at), len(v.value))-20):min(int(at)+20, len(v.value))]
	near = strings.ToValidUTF8(near, "")
	return r.part(v, near, "", "%s: %s at byte %d: %v, near %s", v.name, problem, at, err, quote(near))
}
