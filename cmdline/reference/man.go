package reference

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/paiinit/paiinit/cmdline"
)

// Man returns the man page paiinit(1), dated date. The tables of variables, files and exit statuses are those of page,
// the text of docs/commands.md.
func Man(app *cli.App, page, date string) (string, error) {
	all := commands(app)
	m := &roff{}
	m.line(`.\" Generated: see CONTRIBUTING.md.`)
	m.line(`.TH PAIINIT 1 "` + date + `" "paiinit" "User Commands"`)
	m.line(".SH NAME")
	m.text("paiinit - start a distributed job when all its containers are present, and end them together")
	m.line(".SH SYNOPSIS")
	m.line(".nf")
	m.synopsis("[run] [FLAGS] [--] COMMAND [ARG...]")
	for _, c := range all {
		if c.name != run {
			m.synopsis(c.synopsis)
		}
	}
	m.line(".fi")
	m.line(".SH DESCRIPTION")
	m.text("paiinit is the ENTRYPOINT of every image of a job, or stands before the job's command. It runs as the " +
		"init of its container, reads the environment of the scheduler, finds its peers, and runs COMMAND on rank 0 " +
		"once all ranks are present, or on every rank with `--exec all`. The other ranks wait. Every container ends " +
		"with the exit status of COMMAND.")
	m.line(".PP")
	m.text("If COMMAND shares its name with one of the commands below, put `--` before it. Standard output belongs " +
		"to COMMAND and to the answers of the commands; paiinit logs to standard error.")
	m.line(".SH COMMANDS")
	for _, c := range all {
		m.command(c)
	}
	m.line(".SH OPTIONS")
	m.text("Each flag of `run` has an environment variable, which is named here after the flag. A flag wins over " +
		"its variable, and both win over the scheduler. All commands accept `--help`.")
	for _, group := range cmdline.Groups() {
		m.line(".SS " + group)
		for _, r := range named(all, run).rows {
			if r.Group == group {
				m.flag(r, cmdline.Twin(r.Name))
			}
		}
	}
	for _, section := range []struct{ title, heading string }{
		{"ENVIRONMENT", "Variables"}, {"FILES", "State directory"}, {"EXIT STATUS", "Exit statuses"},
	} {
		m.line(".SH " + section.title)
		if err := m.section(page, section.heading); err != nil {
			return "", err
		}
	}
	m.line(".SH EXAMPLES")
	m.line(".nf")
	for _, c := range all {
		for _, example := range c.examples {
			m.line(escape(example))
		}
	}
	m.line(".fi")
	m.line(".SH SEE ALSO")
	m.text("**ssh**(1), **ssh_config**(5)")
	m.line(".PP")
	m.text("docs/ in the source: https://github.com/paiinit/paiinit")
	return m.String(), nil
}

// roff is a man page.
type roff struct{ strings.Builder }

func (m *roff) line(text string) { m.WriteString(text + "\n") }

// text adds a text with some of Markdown. A sentence begins a line, and no line is longer than 80 bytes.
func (m *roff) text(markdown string) {
	at := 0
	for word := range strings.FieldsSeq(markdownToRoff(markdown)) {
		switch {
		case at > 0 && at+1+len(word) > 80:
			m.WriteString("\n")
			at = 0
		case at > 0:
			m.WriteString(" ")
			at++
		}
		if at == 0 && word[0] == '.' {
			word = `\&` + word // not a request
		}
		m.WriteString(word)
		at += len(word)
		if strings.HasSuffix(word, ".") || strings.HasSuffix(word, ";") {
			m.WriteString("\n")
			at = 0
		}
	}
	if at > 0 {
		m.WriteString("\n")
	}
}

// synopsis adds the line of a command: words in capitals are replaced by the user, others are typed.
func (m *roff) synopsis(words string) {
	text := regexp.MustCompile(`[A-Z]{2,}|[a-z-]+`).ReplaceAllStringFunc(words, func(word string) string {
		if word[0] >= 'A' && word[0] <= 'Z' {
			return `\fI` + word + `\fP`
		}
		return `\fB` + strings.ReplaceAll(word, "-", `\-`) + `\fP`
	})
	m.line(`\fBpaiinit\fP ` + text)
}

// command adds a command, with those of its flags that run does not describe.
func (m *roff) command(c command) {
	m.line(".TP")
	m.synopsis(c.synopsis)
	m.text(sentence(c.usage))
	if c.text != "" {
		for paragraph := range strings.SplitSeq(c.text, "\n\n") {
			m.line(".IP")
			m.text(strings.ReplaceAll(paragraph, "\n", " "))
		}
	}
	var own, shared []string
	for _, r := range c.rows {
		switch {
		case c.name == run:
		case r.Group != "":
			shared = append(shared, "`--"+r.Name+"`")
		default:
			one := &roff{}
			one.flag(r, "")
			own = append(own, one.String())
		}
	}
	if len(own) > 0 {
		m.line(".RS\n" + strings.Join(own, "") + ".RE")
	}
	if len(shared) > 0 {
		m.line(".IP")
		m.text("Flags of `run`: " + strings.Join(shared, ", ") + ".")
	}
}

// flag adds a flag, with its variable unless that is "".
func (m *roff) flag(r cmdline.Row, variable string) {
	m.line(".TP")
	name := `\fB\-\-` + escape(r.Name) + `\fP`
	for _, alias := range r.Aliases {
		name += `, \fB\-` + escape(alias) + `\fP`
	}
	if r.Value != "" {
		name += ` \fI` + escape(r.Value) + `\fP`
	}
	m.line(strings.ReplaceAll(name, `\fP \fI[`, `\fP\fI[`)) // --flag[=value]
	text := sentence(r.Usage)
	if variable != "" {
		text += " Variable: `" + variable + "`."
	}
	m.text(text)
}

// section adds the first paragraph and the table that follow a heading of a page in Markdown.
func (m *roff) section(page, heading string) error {
	_, rest, ok := strings.Cut(page, "\n## "+heading+"\n")
	if !ok {
		return fmt.Errorf("docs/commands.md has no section %q", heading)
	}
	rest, _, _ = strings.Cut(rest, "\n## ")
	before, table, ok := strings.Cut(rest, "\n| ")
	if !ok {
		return fmt.Errorf("the section %q of docs/commands.md has no table", heading)
	}
	if first, _, _ := strings.Cut(strings.TrimSpace(before), "\n\n"); first != "" {
		m.text(strings.ReplaceAll(first, "\n", " "))
	}
	for i, row := range strings.Split(table, "\n") {
		row, ok := strings.CutPrefix(row, "| ")
		if i < 2 || !ok { // the head and the line below it
			continue
		}
		cells := strings.Split(strings.TrimSuffix(strings.ReplaceAll(row, `\|`, "\x00"), " |"), " | ")
		m.line(".TP")
		m.line(markdownToRoff(strings.ReplaceAll(cells[0], "\x00", "|")))
		var text []string
		for _, cell := range cells[1:] {
			text = append(text, sentence(strings.ReplaceAll(cell, "\x00", "|")))
		}
		m.text(strings.Join(text, " "))
	}
	return nil
}

// sentence begins a text with a capital, unless it begins with a flag or a name, and ends it with a full stop.
func sentence(text string) string {
	if text != "" && text[0] >= 'a' && text[0] <= 'z' && !strings.HasPrefix(text, "paiinit") {
		text = strings.ToUpper(text[:1]) + text[1:]
	}
	if !strings.HasSuffix(text, ".") {
		text += "."
	}
	return text
}

// markdownToRoff writes code and strong text bold, and links as their text.
func markdownToRoff(text string) string {
	text = regexp.MustCompile(` \(\[(?:more|which|below)\]\([^)]*\)\)`).ReplaceAllString(text, "")
	text = regexp.MustCompile(`\[([^\]]+)\]\([^)]*\)`).ReplaceAllString(text, "$1")
	text = escape(text)
	text = regexp.MustCompile(`\\\(ga(.*?)\\\(ga`).ReplaceAllString(text, `\fB$1\fP`)
	return regexp.MustCompile(`\*\*(.*?)\*\*`).ReplaceAllString(text, `\fB$1\fP`)
}

// escape writes characters that roff would change or take for a request.
func escape(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`).Replace(text)
	if strings.HasPrefix(text, ".") {
		text = `\&` + text
	}
	return text
}
