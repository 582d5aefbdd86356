package launch

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Words are what a rank's arguments can say about the rank that gets them, and about its job.
type Words struct {
	Position
	Alias string
	Host  string // its address
	Slots int
}

// list returns the words with their values, in the order of the documentation.
func (w Words) list() []Var {
	return []Var{
		{Name: "rank", Value: strconv.Itoa(w.Rank)}, {Name: "size", Value: strconv.Itoa(w.Size)},
		{Name: "index", Value: strconv.Itoa(w.Index)}, {Name: "role", Value: w.Role}, {Name: "alias", Value: w.Alias},
		{Name: "host", Value: w.Host}, {Name: "master", Value: w.Master}, {Name: "port", Value: w.masterPort()},
		{Name: "slots", Value: strconv.Itoa(w.Slots)},
	}
}

// WordError says that an argument has an unknown word.
type WordError struct {
	Argument, Word string
	Known          []string
}

func (e *WordError) Error() string {
	return fmt.Sprintf("the argument %q has the unknown word {%s}; known are {%s}; write {{%s} for the text {%s}",
		e.Argument, e.Word, strings.Join(e.Known, "} {"), e.Word, e.Word)
}

// Fill replaces the words of args by their values: {rank} in any place of an argument. {{rank} becomes the text {rank}.
// Braces around anything but lower-case letters, as in JSON, stay as they are, and so does ${name}, which belongs to
// a shell. The error is a [*WordError].
func (w Words) Fill(args []string) ([]string, error) {
	known := w.list()
	word := regexp.MustCompile(`[{$]?\{[a-z]+\}`)
	filled := make([]string, len(args))
	var unknown error
	for i, arg := range args {
		filled[i] = word.ReplaceAllStringFunc(arg, func(found string) string {
			switch {
			case found[0] == '$':
				return found
			case found[1] == '{':
				return found[1:]
			}
			name := found[1 : len(found)-1]
			for _, v := range known {
				if v.Name == name {
					return v.Value
				}
			}
			if unknown == nil {
				e := &WordError{Argument: arg, Word: name}
				for _, v := range known {
					e.Known = append(e.Known, v.Name)
				}
				unknown = e
			}
			return found
		})
	}
	return filled, unknown
}

// SplitWords splits a text into words as a POSIX shell does, by its quotes and backslashes (2.2 Quoting), but expands
// nothing, and takes the characters of operators and comments as any other.
func SplitWords(text string) (words []string, err error) {
	var word []byte
	begun := false // also by quotes without a text
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case ' ', '\t', '\n':
			if begun {
				words = append(words, string(word))
			}
			word, begun = nil, false
		case '\\':
			if i++; i == len(text) {
				return nil, errors.New("nothing follows the last backslash")
			}
			if text[i] != '\n' { // otherwise the line goes on
				word, begun = append(word, text[i]), true
			}
		case '\'', '"':
			inside, length, ok := quotedText(text[i:])
			if !ok {
				return nil, fmt.Errorf("the quote %c has no end", c)
			}
			word, begun = append(word, inside...), true
			i += length - 1
		default:
			word, begun = append(word, c), true
		}
	}
	if begun {
		words = append(words, string(word))
	}
	return words, nil
}

// quotedText returns what stands in the quotes at the beginning of a text, and its length with the quotes. ok is false
// if the quotes have no end.
func quotedText(text string) (inside []byte, length int, ok bool) {
	quote := text[0]
	for i := 1; i < len(text); i++ {
		c := text[i]
		switch {
		case c == quote:
			return inside, i + 1, true
		case quote == '"' && c == '\\' && i+1 < len(text) && strings.IndexByte("$`\"\\\n", text[i+1]) >= 0:
			if i++; text[i] != '\n' {
				inside = append(inside, text[i])
			}
		default:
			inside = append(inside, c)
		}
	}
	return nil, 0, false
}
