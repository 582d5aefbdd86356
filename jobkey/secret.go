package jobkey

import (
	"bytes"
	"fmt"
	"runtime/debug"
)

// minDistinct is the minimum number of different bytes in a secret.
const minDistinct = 5

// weakness says why a secret can be guessed, as the end of a sentence that begins with "the secret"; or "".
func weakness(secret []byte) string {
	if len(secret) < minSecret {
		return fmt.Sprintf("has %d bytes; at least %d are needed", len(secret), minSecret)
	}
	secret = bytes.Trim(secret, " \t\r\n\v\f\x00") // padding adds length and no strength
	switch {
	case isReference(secret):
		return "is a reference such as ${NAME} that was not replaced by its value"
	case isPublished(secret):
		return "contains a placeholder from published documents"
	case distinct(secret) < minDistinct:
		return fmt.Sprintf("has fewer than %d different bytes", minDistinct)
	}
	if n := period(secret); n > 0 {
		return fmt.Sprintf("repeats %d bytes; the repeated part needs at least %d", n, minSecret)
	}
	return ""
}

// isReference recognises what a scheduler, a pipeline or a shell leaves in place of an unknown secret.
func isReference(secret []byte) bool {
	for _, form := range [...][2]string{{"${", "}"}, {"$(", ")"}, {"{{", "}}"}, {"<%", "%>"}} {
		if bytes.HasPrefix(secret, []byte(form[0])) && bytes.HasSuffix(secret, []byte(form[1])) {
			return true
		}
	}
	return false
}

// isPublished recognises placeholders in any spelling: "Change-Me" is "changeme".
func isPublished(secret []byte) bool {
	plain := make([]byte, 0, len(secret))
	defer func() { clear(plain) }()
	for _, c := range secret {
		switch {
		case 'A' <= c && c <= 'Z':
			plain = append(plain, c-'A'+'a')
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
			plain = append(plain, c)
		}
	}
	for _, placeholder := range [...]string{
		"replacethis", // the first versions of examples/ had replace-this-by-32-random-characters
		"replaceme", "changethis", "changeme", "placeholder", "yoursecret", "secrethere",
		"0123456789abcdef", "1234567890123456", "abcdefghijklmnop",
	} {
		if bytes.Contains(plain, []byte(placeholder)) {
			return true
		}
	}
	return false
}

func distinct(secret []byte) (n int) {
	var seen [256]bool
	for _, c := range secret {
		if !seen[c] {
			seen[c] = true
			n++
		}
	}
	return n
}

// period returns the length of the unit that the secret consists of, repeated at least twice, if it is shorter than
// minSecret; else 0. The last repetition may be incomplete.
func period(secret []byte) int {
	for n := 1; n < minSecret && 2*n <= len(secret); n++ {
		if bytes.Equal(secret[n:], secret[:len(secret)-n]) {
			return n
		}
	}
	return 0
}

// stretch makes guesses of a short secret expensive. It returns the memory that this takes to the system, because the
// garbage collector might keep these 2 MB while the job runs.
func stretch(secret, salt []byte) []byte {
	defer debug.FreeOSMemory()
	password := newMAC(secret).sum(salt)
	defer clear(password)
	return scryptKey(password, salt)
}
