package reference

import (
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// bash is the completion, with the places of the generated parts in angle brackets.
const bash = `# Completion of paiinit for bash. Generated: see CONTRIBUTING.md.

# Puts the words into words, and their places in COMP_WORDS into at: bash also splits at "=" and ":".
_paiinit_words() {
	local i word glue=
	for ((i = 0; i <= COMP_CWORD; i++)); do
		word=${COMP_WORDS[i]}
		if [[ $word =~ ^[=:]+$ ]] && ((i > 1)); then
			words[-1]+=$word glue=1
		elif [[ $glue && ! ($i -eq $COMP_CWORD && ${COMP_LINE:0:COMP_POINT} == *[[:space:]]) ]]; then
			words[-1]+=$word glue=
		else
			words+=("$word") at+=("$i") glue=
		fi
	done
}

# Completes the value of the flag $1 from $2.
_paiinit_value() {
	case $1 in
<values>	*) COMPREPLY=() ;;
	esac
	# bash replaces only what follows "=".
	[[ $3 && $COMP_WORDBREAKS != *=* ]] && COMPREPLY=("${COMPREPLY[@]/#/$3}")
}

_paiinit_files() {
	mapfile -t COMPREPLY < <(compgen "$1" -- "$2")
	compopt -o filenames 2>/dev/null
}

_paiinit_choose() { mapfile -t COMPREPLY < <(compgen -W "$1" -- "$2"); }

# Completes the word number $1 of words, which is a command ($1 = last) or one of its arguments.
_paiinit_command() {
	if declare -F _comp_command_offset >/dev/null; then
		_comp_command_offset "${at[$1]}"
	elif declare -F _command_offset >/dev/null; then
		_command_offset "${at[$1]}"
	elif (($1 == last)) && [[ $cur != */* ]]; then
		mapfile -t COMPREPLY < <(compgen -c -- "$cur")
	else
		_paiinit_files -f "$cur"
	fi
}

_paiinit() {
	local -a words=() at=()
	local command=run cur flag i last start word
	COMPREPLY=()
	_paiinit_words
	last=$((${#words[@]} - 1)) start=0 cur=${words[last]}
	for ((i = 1; i < last; i++)); do
		word=${words[i]}
		case $word in
		--)
			start=$((i + 1))
			break
			;;
		-*=*) ;;
		-*)
			flag=${word#-} flag=--${flag#-}
			case $flag in
			<valued>)
				if ((++i == last)); then
					_paiinit_value "$flag" "$cur"
					return
				fi
				;;
			esac
			;;
		<commands>)
			if ((i == 1)); then
				command=$word
				continue
			fi
			;;&
		*)
			start=$i
			break
			;;
		esac
	done

	if ((start == 0)) && [[ $cur == -*=* ]]; then
		flag=${cur%%=*} flag=${flag#-}
		_paiinit_value "--${flag#-}" "${cur#*=}" "${cur%%=*}="
		return
	elif ((start == 0)) && [[ $cur == -* ]]; then
		case $command in
<flags>		esac
		return
	fi
	case $command in
	<withCommand>)
		if ((last == 1)); then
			_paiinit_choose "<allCommands>" "$cur"
			[[ $cur ]] && mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -c -- "$cur")
			[[ $cur == */* ]] && _paiinit_files -f "$cur"
			return
		fi
		_paiinit_command $((start ? start : last))
		;;
	<withHost>)
		if ((start == 0)); then
			_paiinit_choose "$("${words[0]}" hosts 2>/dev/null | sed 's/:[0-9]*$//')" "$cur"
		else
			_paiinit_command $((start + 1))
		fi
		;;
	<withDirectory>) ((start)) || _paiinit_files -d "$cur" ;;
	esac
}

complete -F _paiinit paiinit
`

// Bash returns the completion for bash.
func Bash(app *cli.App) string {
	all := commands(app)
	var values, perCommand strings.Builder
	var valued []string
	for _, r := range flags(all) {
		if r.Value != "" && !r.Optional {
			valued = append(valued, "--"+r.Name)
		}
		switch v := valueOf(r); {
		case v.words != "":
			fmt.Fprintf(&values, "\t--%s) _paiinit_choose %q \"$2\" ;;\n", r.Name, v.words)
		case v.kind == "file":
			fmt.Fprintf(&values, "\t--%s) _paiinit_files -f \"$2\" ;;\n", r.Name)
		case v.kind == "directory":
			fmt.Fprintf(&values, "\t--%s) _paiinit_files -d \"$2\" ;;\n", r.Name)
		case v.kind == "command":
			fmt.Fprintf(&values, "\t--%s) mapfile -t COMPREPLY < <(compgen -c -- \"$2\") ;;\n", r.Name)
		}
	}
	for _, c := range all {
		list := "--help"
		for _, r := range slices.Backward(c.rows) {
			list = "--" + r.Name + " " + list
		}
		fmt.Fprintf(&perCommand, "\t\t%s) _paiinit_choose %q \"$cur\" ;;\n", c.name, list)
	}
	return strings.NewReplacer(
		"<values>", values.String(), "<valued>", strings.Join(valued, " | "), "<flags>", perCommand.String(),
		"<commands>", names(all, " | "), "<allCommands>", names(all, " "),
		"<withCommand>", names(with(all, aCommand), " | "), "<withHost>", names(with(all, aHost), " | "),
		"<withDirectory>", names(with(all, directory), " | "),
	).Replace(bash)
}

// names joins the names of commands.
func names(all []command, separator string) string {
	var list []string
	for _, c := range all {
		list = append(list, c.name)
	}
	return strings.Join(list, separator)
}

// with returns the commands that have these words.
func with(all []command, w words) []command {
	return slices.DeleteFunc(slices.Clone(all), func(c command) bool { return c.words != w })
}
