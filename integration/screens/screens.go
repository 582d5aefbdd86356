// Package screens compares what the program prints with the screens that a page of the documentation shows: each is a
// block of text after a comment that names it.
package screens

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// blocks returns what finds the screens of a page: a name, and the text after it.
func blocks() *regexp.Regexp {
	return regexp.MustCompile("<!-- screen: ([a-z0-9-]+) -->\n```text\n((?s:.*?))```\n")
}

// Check compares how a job ended, as its log has it, with the screen of that name in the page. Numbers may differ, and
// the lines before the end, which depend on the speed of the machine. With PAIINIT_UPDATE=1 in the environment it
// writes the screen; tests that run side by side then need -parallel 1.
func Check(page, name, log string) error { return check(page, name, log, ending) }

// CheckAll compares all lines of a log as Check does.
func CheckAll(page, name, log string) error { return check(page, name, log, unnumbered) }

// check compares what part makes of both texts.
func check(page, name, log string, part func(string) string) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return fmt.Errorf("reading the page of the screens: %w", err)
	}
	log = strings.TrimRight(log, "\n") + "\n"
	for _, m := range blocks().FindAllSubmatchIndex(text, -1) {
		if string(text[m[2]:m[3]]) != name {
			continue
		}
		want := string(text[m[4]:m[5]])
		if os.Getenv("PAIINIT_UPDATE") != "" {
			changed := string(text[:m[4]]) + log + string(text[m[5]:])
			if err := os.WriteFile(page, []byte(changed), 0o600); err != nil {
				return fmt.Errorf("writing screen %s: %w", name, err)
			}
		} else if part(want) == "" || part(want) != part(log) {
			return fmt.Errorf("%s, screen %s, has:\n%s\nprinted was:\n%s", page, name, want, log)
		}
		return nil
	}
	return fmt.Errorf("%s has no screen %s", page, name)
}

// Names returns the names of the screens in a page's text. It fails if a name is not followed by a block.
func Names(page string) (names []string, err error) {
	for _, m := range blocks().FindAllStringSubmatch(page, -1) {
		names = append(names, m[1])
	}
	if n := strings.Count(page, "<!-- screen: "); n != len(names) {
		return nil, fmt.Errorf("%d names of screens, but %d blocks after them", n, len(names))
	}
	return names, nil
}

// ending returns the end of a log that ends with an error, as unnumbered does.
func ending(text string) string {
	_, text, _ = strings.Cut(text, ": error: ")
	return unnumbered(text)
}

// unnumbered returns a text without times, counts, durations, ports, fingerprints and IDs of Docker's containers.
func unnumbered(text string) string {
	text = regexp.MustCompile(`fingerprint [0-9a-f]{8}`).ReplaceAllString(text, "fingerprint N")
	text = regexp.MustCompile(`\b[0-9a-f]{12}\b|[0-9][0-9:.]*( ?ms|m[0-9]+s| ?s\b)?`).ReplaceAllString(text, "N")
	text = strings.ReplaceAll(text, "N to N", "N")
	return regexp.MustCompile(`N (time|lookup)\b`).ReplaceAllString(text, "N ${1}s")
}
