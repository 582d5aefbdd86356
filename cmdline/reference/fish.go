package reference

import (
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"
)

// fish is the beginning of the completion, with the places of the generated parts in angle brackets.
const fish = `# Completion of paiinit for fish. Generated: see CONTRIBUTING.md.

# Prints the command of paiinit on the command line, and the number of the word with which COMMAND begins (0: none yet).
function __paiinit_state
    set -l words (commandline -opc)
    set -l command run
    set -l value
    for i in (seq 2 (count $words))
        if set -q value[1]
            set -e value
            continue
        end
        switch $words[$i]
            case --
                echo $command
                math $i + 1
                return
            case '-*=*'
            case <valued>
                set value yes
            case '-*'
            case '*'
                if test $i -eq 2; and contains -- $words[2] <allCommands>
                    set command $words[2]
                else
                    echo $command
                    echo $i
                    return
                end
        end
    end
    echo $command
    echo 0
end

# Succeeds if the word is for one of these commands of paiinit, not for COMMAND.
function __paiinit_in
    set -l state (__paiinit_state)
    test $state[2] -eq 0; and contains -- $state[1] $argv
end

function __paiinit_first
    test (count (commandline -opc)) -eq 1
end

# Completes COMMAND and its arguments for one of these commands of paiinit; of rsh, COMMAND follows HOST.
function __paiinit_command
    set -l state (__paiinit_state)
    set -l words (commandline -opc) (string escape -- (commandline -ct))
    contains -- $state[1] $argv; or return
    set -l start $state[2]
    if test $start -eq 0
        set start (count $words)
        string match -q -- '-*' (commandline -ct); and return
    end
    contains -- $state[1] <withHost>; and set start (math $start + 1)
    test $start -le (count $words); and complete -C (string join -- ' ' $words[$start..])
end

complete -c paiinit -f
`

// Fish returns the completion for fish.
func Fish(app *cli.App) string {
	all := commands(app)
	var valued []string
	for _, r := range flags(all) {
		if r.Value != "" && !r.Optional {
			valued = append(valued, "--"+r.Name, "-"+r.Name)
		}
	}
	var b strings.Builder
	b.WriteString(strings.NewReplacer("<valued>", strings.Join(valued, " "), "<allCommands>", names(all, " "),
		"<withHost>", names(with(all, aHost), " ")).Replace(fish))
	line := func(condition, rest, text string) {
		text = strings.ReplaceAll(strings.ReplaceAll(text, `\`, `\\`), "'", `\'`)
		fmt.Fprintf(&b, "complete -c paiinit -n '%s' %s -d '%s'\n", condition, rest, text)
	}
	for _, c := range all {
		line("__paiinit_first", "-a "+c.name, c.usage)
	}
	call := "__paiinit_command " + names(with(all, aCommand), " ") + " " + names(with(all, aHost), " ")
	fmt.Fprintf(&b, "complete -c paiinit -a '(%s)'\n", call)
	fmt.Fprintf(&b, "complete -c paiinit -n '__paiinit_in %s' -a '%s'\n", names(with(all, aHost), " "),
		`(paiinit hosts 2>/dev/null | string replace -r ":.*" "")`)
	fmt.Fprintf(&b, "complete -c paiinit -n '__paiinit_in %s' -a '(__fish_complete_directories)'\n",
		names(with(all, directory), " "))
	for _, c := range all {
		for _, r := range c.rows {
			rest := "-l " + r.Name
			switch v := valueOf(r); {
			case r.Optional: // fish completes its value after "="
				rest += " -f"
			case v.words != "":
				rest += " -x -a '" + v.words + "'"
			case v.kind == "file":
				rest += " -r -F"
			case v.kind == "directory":
				rest += " -x -a '(__fish_complete_directories)'"
			case v.kind == "command":
				rest += " -x -a '(__fish_complete_command)'"
			case r.Value != "":
				rest += " -x"
			}
			line("__paiinit_in "+c.name, rest, brief(r))
		}
		line("__paiinit_in "+c.name, "-l help", "show this help")
	}
	return b.String()
}
