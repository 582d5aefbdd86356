// Command notice writes the licences of the modules that paiinit contains to a file, NOTICE.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	to := flag.String("o", "NOTICE", "`FILE` to write")
	flag.Parse()
	text, err := notice()
	if err == nil {
		err = os.WriteFile(*to, []byte(text), 0o644)
	}
	if err != nil {
		log.Fatalln("notice:", err)
	}
}

// notice returns the licence texts, each once, after the modules to which it applies.
func notice() (string, error) {
	const format = `{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}}{{"\t"}}{{.Dir}}{{end}}{{end}}`
	list := exec.Command("env", "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0",
		"go", "list", "-deps", "-tags", "urfave_cli_no_docs", "-f", format, "github.com/paiinit/paiinit/cmd/paiinit")
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		return "", fmt.Errorf("listing the modules: %w", err)
	}
	modules := strings.Split(strings.TrimSpace(string(out)), "\n")
	slices.Sort(modules)
	users := make(map[string][]string) // of a licence's text
	var texts []string
	add := func(user, dir string) error {
		all, err := filepath.Glob(filepath.Join(dir, "LICENSE*"))
		if err != nil || len(all) == 0 {
			return fmt.Errorf("%s: no file LICENSE in %s (%w)", user, dir, err)
		}
		b, err := os.ReadFile(all[0])
		if err != nil {
			return err
		}
		text := strings.TrimSpace(string(bytes.ReplaceAll(b, []byte("\r\n"), []byte("\n"))))
		if users[text] == nil {
			texts = append(texts, text)
		}
		users[text] = append(users[text], user)
		return nil
	}
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("finding Go's own licence: %w", err)
	}
	if err := add("the Go standard library", strings.TrimSpace(string(root))); err != nil {
		return "", err
	}
	for _, line := range slices.Compact(modules) {
		if user, dir, ok := strings.Cut(line, "\t"); ok {
			if err := add(user, dir); err != nil {
				return "", err
			}
		}
	}
	var b strings.Builder
	b.WriteString("paiinit is distributed under the licence in the file LICENSE. It contains these works of others.\n")
	for _, text := range texts {
		rule := strings.Repeat("-", 80)
		fmt.Fprintf(&b, "\n%s\n%s\n\n%s\n", rule, strings.Join(users[text], "\n"), text)
	}
	return b.String(), nil
}
