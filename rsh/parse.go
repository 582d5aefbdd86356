package rsh

import (
	"errors"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Invocation is a parsed command line of a remote shell.
type Invocation struct {
	Host      string // as given, without "user@" and without the brackets around an IPv6 address
	User      string // from the first of "user@host" and -l; "" = not given
	Port      int    // from -p; 0 = not given
	Command   string // the words after the host, joined by single spaces and not quoted; "" = a login shell
	Subsystem bool   // -s: Command is the name of a subsystem such as "sftp"
	NoStdin   bool   // -n or -f: the command reads nothing
	TTY       int    // the terminal option: 1 for -t, 2 for -tt, -1 for -T; 0 = not given
	NoEscape  bool   // -e none: "~" is a character like any other
	Version   bool   // -V: only print the version

	SetEnv      []string // "name=value" for the command's environment, from -o SetEnv
	SendEnv     []string // patterns of path.Match, from -o SendEnv: variables of the caller for the command
	Unsupported string   // the first option that this ssh does not support, such as "-W"; "" = none

	terminal *terminal // for the command; Caller.Run sets it
	environ  []string  // "name=value" for the command, from SetEnv and SendEnv; Caller.Run sets it
}

// withArgument lists the options of ssh(1) that take an argument; all others are flags. The source is the usage of
// OpenSSH 9.2 and 10.0; it contains -l and -n of rsh(1).
const withArgument = "BbcDEeFIiJLlmOoPpQRSWw"

// Parse reads the arguments that launchers and tools give a remote shell:
//
//	[options] [user@]host [options] [--] words...
//
// As in OpenSSH, options may stand before and after the host, clustered or not, with their argument attached or in the
// next word. Parse ignores almost all options, because the job defines where a host is and how to log in there. An
// unknown option is a flag and never an error, because a launcher may hang when its agent fails (MPICH hydra does). The
// only error is a call without a host.
func Parse(args []string) (Invocation, error) {
	var inv Invocation
	rest, ended := inv.options(args)
	if inv.Version {
		return Invocation{Version: true}, nil
	}
	if len(rest) == 0 || !inv.host(rest[0]) {
		return Invocation{}, errors.New("no HOST given")
	}
	rest = rest[1:]
	if !ended {
		rest, _ = inv.options(rest)
	}
	if inv.Version {
		return Invocation{Version: true}, nil
	}
	inv.Command = strings.Join(rest, " ")
	return inv, nil
}

// options consumes leading options; ended reports that "--" was among them.
func (inv *Invocation) options(args []string) (rest []string, ended bool) {
	for len(args) > 0 {
		word := args[0]
		if len(word) < 2 || word[0] != '-' {
			return args, false
		}
		args = args[1:]
		if word == "--" {
			return args, true
		}
		if strings.HasPrefix(word, "--") {
			continue // ssh has no long options
		}
		for i := 1; i < len(word); i++ {
			opt := word[i]
			if strings.IndexByte(withArgument, opt) < 0 {
				inv.set(opt, "")
				continue
			}
			value := word[i+1:]
			if value == "" && len(args) > 0 {
				value, args = args[0], args[1:]
			}
			inv.set(opt, value)
			break
		}
	}
	return args, false
}

func (inv *Invocation) set(opt byte, value string) {
	switch opt {
	case 'l':
		if inv.User == "" {
			inv.User = value
		}
	case 'p':
		if n, err := strconv.ParseUint(value, 10, 16); err == nil {
			inv.Port = int(n)
		}
	case 's':
		inv.Subsystem = true
	case 'n', 'f':
		inv.NoStdin = true
	case 't':
		inv.TTY = min(max(inv.TTY, 0)+1, 2)
	case 'T':
		inv.TTY = -1
	case 'e':
		inv.NoEscape = value == "none"
	case 'V':
		inv.Version = true
	case 'D', 'G', 'L', 'N', 'O', 'R', 'W', 'w':
		inv.unsupported("-" + string(opt))
	case 'o':
		inv.configure(value)
	}
}

func (inv *Invocation) unsupported(option string) {
	if inv.Unsupported == "" {
		inv.Unsupported = option
	}
}

// configure reads "Key=Value" or "Key Value", as in ssh_config(5).
func (inv *Invocation) configure(line string) {
	line = strings.TrimSpace(line)
	end := strings.IndexAny(line, " \t=")
	if end < 0 {
		return
	}
	values := unquote(strings.TrimPrefix(strings.TrimLeft(line[end:], " \t"), "="))
	if len(values) == 0 {
		return
	}
	key, val := line[:end], values[0]
	switch strings.ToLower(key) {
	case "user":
		inv.set('l', val)
	case "port":
		inv.set('p', val)
	case "requesttty":
		inv.TTY = map[string]int{"no": -1, "yes": 1, "force": 2}[strings.ToLower(val)]
	case "escapechar":
		inv.set('e', val)
	case "setenv":
		if inv.SetEnv == nil { // the first line wins
			inv.SetEnv = values
		}
	case "sendenv":
		inv.sendEnv(values)
	case "remotecommand":
		if !strings.EqualFold(val, "none") {
			inv.unsupported(key)
		}
	case "dynamicforward", "localforward", "remoteforward":
		inv.unsupported(key)
	}
}

// sendEnv adds patterns; "-PATTERN" removes earlier ones.
func (inv *Invocation) sendEnv(patterns []string) {
	for _, p := range patterns {
		if p, ok := strings.CutPrefix(p, "-"); ok {
			inv.SendEnv = slices.DeleteFunc(inv.SendEnv, func(earlier string) bool { return matches(p, earlier) })
			continue
		}
		inv.SendEnv = append(inv.SendEnv, p)
	}
}

func matches(pattern, name string) bool {
	ok, err := path.Match(pattern, name)
	return ok && err == nil
}

// environment chooses the variables for the command. SetEnv comes last and wins.
func (inv *Invocation) environment(environ []string) (chosen []string) {
	for _, kv := range environ {
		name, _, _ := strings.Cut(kv, "=")
		if slices.ContainsFunc(inv.SendEnv, func(p string) bool { return matches(p, name) }) {
			chosen = append(chosen, kv)
		}
	}
	return append(chosen, inv.SetEnv...)
}

// unquote splits a text at blanks outside quotes, and removes the quotes.
func unquote(text string) (words []string) {
	var word []byte
	quote, inWord := byte(0), false
	for i := range len(text) {
		switch c := text[i]; {
		case quote == 0 && (c == ' ' || c == '\t'):
			if inWord {
				words = append(words, string(word))
			}
			word, inWord = nil, false
		case c == quote:
			quote = 0
		case quote == 0 && (c == '"' || c == '\''):
			quote, inWord = c, true
		default:
			word, inWord = append(word, c), true
		}
	}
	if inWord {
		words = append(words, string(word))
	}
	return words
}

// host reads "host", "user@host", "[::1]", "user@[::1]" and "ssh://[user@]host[:port]".
func (inv *Invocation) host(word string) bool {
	uri := false
	if after, ok := strings.CutPrefix(word, "ssh://"); ok {
		uri, word = true, strings.TrimRight(after, "/")
	}
	if i := strings.LastIndexByte(word, '@'); i >= 0 {
		inv.set('l', word[:i])
		word = word[i+1:]
	}
	if strings.HasPrefix(word, "[") {
		if host, after, ok := strings.Cut(word[1:], "]"); ok {
			word = host
			if port, ok := strings.CutPrefix(after, ":"); ok && uri {
				inv.set('p', port)
			}
		}
	} else if host, port, ok := strings.Cut(word, ":"); ok && uri {
		word = host
		inv.set('p', port)
	}
	inv.Host = word
	return word != ""
}

// brief shortens a command for a message: a launcher's command may have several thousand characters.
func brief(command string) string {
	const limit = 120
	command = strings.TrimSpace(command)
	if len(command) > limit {
		command = command[:limit] + "..."
	}
	return strconv.Quote(command)
}
