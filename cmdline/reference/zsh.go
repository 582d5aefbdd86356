package reference

import (
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/paiinit/paiinit/cmdline"
)

// Zsh returns the completion for zsh: a file _paiinit in fpath, or one to source after compinit.
func Zsh(app *cli.App) string {
	all := commands(app)
	var b strings.Builder
	b.WriteString("#compdef paiinit\n# Completion of paiinit for zsh. Generated: see CONTRIBUTING.md.\n")
	// Not _paiinit_hosts, which completes the command of that name.
	b.WriteString("\n_paiinit_ranks() {\n\tlocal -a hosts=(${${(f)\"$(paiinit hosts 2>/dev/null)\"}%:*})\n" +
		"\tcompadd -a hosts\n}\n")
	for _, c := range all {
		fmt.Fprintf(&b, "\n_paiinit_%s() {\n\t_arguments -S -A '-*'", c.name)
		for _, r := range c.rows {
			b.WriteString(" \\\n\t\t" + zshFlag(r))
		}
		b.WriteString(" \\\n\t\t'--help[show this help]'")
		switch c.words {
		case aCommand:
			b.WriteString(" \\\n\t\t'(-)1:command:_paiinit_command' \\\n\t\t'*:: :_normal'")
		case aHost:
			b.WriteString(" \\\n\t\t'(-)1:host:_paiinit_ranks' \\\n\t\t'*::: :_normal'") // HOST is not the command
		case directory:
			b.WriteString(" \\\n\t\t'1:directory:_directories'")
		}
		b.WriteString("\n}\n")
	}
	// No variable may be called commands: zsh's own of that name has the programs in PATH.
	b.WriteString("\n_paiinit_command() { _alternative 'commands:command:_command_names -e' 'files:file:_files' }\n" +
		"\n_paiinit() {\n\tlocal -a own=(\n")
	for _, c := range all {
		fmt.Fprintf(&b, "\t\t%s\n", zshQuote(c.name+":"+c.usage))
	}
	fmt.Fprintf(&b, `	)
	if (( CURRENT == 2 )) && [[ $words[2] != -* ]]; then
		_describe -t paiinit-commands 'paiinit command' own
		_paiinit_command
		return
	fi
	case $words[2] in
	(%s)
		shift words
		(( CURRENT-- ))
		_paiinit_$words[1]
		;;
	(*) _paiinit_run ;;
	esac
}

if [[ $funcstack[1] == _paiinit ]]; then
	_paiinit "$@"
else
	compdef _paiinit paiinit
fi
`, names(all, "|"))
	return b.String()
}

// zshFlag returns the argument of _arguments for a flag.
func zshFlag(r cmdline.Row) string {
	escape := strings.NewReplacer("[", `\[`, "]", `\]`, ":", `\:`).Replace
	name, action := "--"+r.Name, " "
	switch v := valueOf(r); {
	case v.words != "":
		action = "(" + v.words + ")"
	case v.kind == "file":
		action = "_files"
	case v.kind == "directory":
		action = "_directories"
	case v.kind == "command":
		action = "_command_names -e"
	}
	text := "[" + escape(brief(r)) + "]"
	switch {
	case r.Optional:
		return zshQuote(name + "=-" + text + "::value:" + action)
	case r.Value != "":
		return zshQuote(name + "=" + text + ":" + escape(r.Value) + ":" + action)
	}
	return zshQuote(name + text)
}

func zshQuote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }
