package joblog

import (
	"io"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// appendEscaped appends s on one line. It escapes what a terminal does not print as a character, such as control and
// bidirectional characters. A tab becomes spaces.
func appendEscaped(b []byte, s string) []byte {
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			b = append(b, '\\', 'x', hex(s[0]>>4), hex(s[0]))
		case r == '\t':
			b = append(b, "    "...)
		case strconv.IsPrint(r):
			b = append(b, s[:n]...)
		default:
			quoted := strconv.AppendQuoteRune(nil, r)
			b = append(b, quoted[1:len(quoted)-1]...)
		}
		s = s[n:]
	}
	return b
}

// hex returns the lowest four bits of b as a digit.
func hex(b byte) byte { return "0123456789abcdef"[b&15] }

// escapingWriter escapes the characters that package slog leaves as they are and a terminal does not print: in logfmt
// DEL, in JSON all that are not ASCII. Outside of strings JSON has no such characters.
type escapingWriter struct{ w io.Writer }

func (e escapingWriter) Write(p []byte) (int, error) {
	escaped := make([]byte, 0, len(p))
	for rest := p; len(rest) > 0; {
		r, n := utf8.DecodeRune(rest)
		switch {
		case r == '\n' || strconv.IsPrint(r):
			escaped = append(escaped, rest[:n]...)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			escaped = appendUnicode(appendUnicode(escaped, high), low)
		default:
			escaped = appendUnicode(escaped, r)
		}
		rest = rest[n:]
	}
	if _, err := e.w.Write(escaped); err != nil {
		return 0, err
	}
	return len(p), nil
}

// appendUnicode appends the escape of JSON for a character of 16 bits.
func appendUnicode(b []byte, r rune) []byte {
	return append(b, '\\', 'u', hex(byte(r>>12)), hex(byte(r>>8)), hex(byte(r>>4)), hex(byte(r)))
}
