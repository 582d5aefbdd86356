package jobkey

import (
	"bytes"
	"fmt"
	"runtime/debug"

	"golang.org/x/crypto/scrypt"
)

// minDistinct is how many different bytes a secret has at least.
const minDistinct = 5

// weakness says why a secret can be guessed, as the end of a sentence that begins with "the secret", or "".
func weakness(secret []byte) string {
	if len(secret) < minSecret {
		return fmt.Sprintf("has %d bytes, and at least %d are needed", len(secret), minSecret)
	}
	secret = bytes.Trim(secret, " \t\r\n\v\f\x00") // padding adds length and no strength
	switch {
	case isReference(secret):
		return "is a reference, as ${NAME} is one, that was not replaced by its value"
	case isPublished(secret):
		return "contains a placeholder that is published in documents"
	case distinct(secret) < minDistinct:
		return fmt.Sprintf("has fewer than %d different bytes", minDistinct)
	}
	if n := period(secret); n > 0 {
		return fmt.Sprintf("repeats %d bytes, and a repetition of fewer than %d is too short", n, minSecret)
	}
	return ""
}

// isReference recognises what a scheduler, a pipeline or a shell leaves in place of a secret that it does not know.
func isReference(secret []byte) bool {
	for _, form := range [...][2]string{{"${", "}"}, {"$(", ")"}, {"{{", "}}"}, {"<%", "%>"}} {
		if bytes.HasPrefix(secret, []byte(form[0])) && bytes.HasSuffix(secret, []byte(form[1])) {
			return true
		}
	}
	return false
}

// isPublished recognises placeholders however they are spelt: "Change-Me" is "changeme".
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

// period is the length of the unit that the whole secret repeats at least twice, its last repetition possibly cut
// short, if the unit alone is shorter than a secret may be; else 0.
func period(secret []byte) int {
	for n := 1; n < minSecret && 2*n <= len(secret); n++ {
		if bytes.Equal(secret[n:], secret[:len(secret)-n]) {
			return n
		}
	}
	return 0
}

// stretch makes each guess of a short secret as expensive as one start of a container: scrypt (RFC 7914) with
// N = 2048, r = 8, p = 1 takes 128·N·r = 2 MB. Hundreds of containers may share two processors, so it takes no more.
func stretch(secret, salt []byte) ([]byte, error) {
	password := newMAC(secret).sum(salt) // scrypt leaves copies of what it is given
	defer clear(password)
	key, err := scrypt.Key(password, salt, 1<<11, 8, 1, 32)
	if err != nil {
		return nil, fmt.Errorf("stretching a secret of fewer than %d bytes: %w", longSecret, err)
	}
	debug.FreeOSMemory() // the garbage collector alone might keep these 2 MB for as long as the job runs
	return key, nil
}
