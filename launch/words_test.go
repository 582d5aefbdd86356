package launch_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/launch"
)

func TestFillWords(t *testing.T) {
	w := launch.Words{
		Position: launch.Position{Rank: 3, Size: 4, Index: 2, Role: "worker", Master: "10.0.0.0", MasterPort: 20001},
		Alias:    "worker-2", Host: "10.0.0.3", Slots: 8,
	}
	for arg, want := range map[string]string{
		"":                     "",
		"plain":                "plain",
		"{rank}":               "3",
		"--node-rank={rank}":   "--node-rank=3",
		"{master}:{port}":      "10.0.0.0:20001",
		"[{host}]:{port}":      "[10.0.0.3]:20001",
		"{size}{index}{slots}": "428",
		"{role}/{alias}":       "worker/worker-2",

		// JSON, Jinja, Python, Go, shells
		`{"a":1}`:                    `{"a":1}`,
		`{"a":{"b":{}},"c":[{}]}`:    `{"a":{"b":{}},"c":[{}]}`,
		`{"rank":{rank}}`:            `{"rank":3}`,
		"{}":                         "{}",
		"{0} {Rank} {rank_0} {ra nk": "{0} {Rank} {rank_0} {ra nk",
		"{{ bos_token }}":            "{{ bos_token }}",
		"{{.Name}}":                  "{{.Name}}",
		"${name} $rank ${rank}":      "${name} $rank ${rank}",

		// escapes
		"{{rank}":    "{rank}",
		"{{rank}}":   "{rank}}",
		"{{nothing}": "{nothing}",
		"{{{rank}":   "{{rank}",
		"$ {rank}":   "$ 3",
	} {
		got, err := w.Fill([]string{arg})
		require.NoError(t, err, arg)
		require.Equal(t, []string{want}, got)
	}
	args := []string{"a {rank}", "b {rnak}", "c {nothing}"}
	_, err := w.Fill(args)
	require.EqualError(t, err, `the argument "b {rnak}" has the unknown word {rnak}; known are {rank} {size} {index} `+
		`{role} {alias} {host} {master} {port} {slots}; write {{rnak} for the text {rnak}`)
	require.Equal(t, []string{"a {rank}", "b {rnak}", "c {nothing}"}, args)
	got, err := launch.Words{Position: launch.Position{Role: "{size}"}}.Fill([]string{"{role}"})
	require.NoError(t, err)
	require.Equal(t, []string{"{size}"}, got, "a value is not looked at again")
	got, err = launch.Words{}.Fill([]string{"{port}"})
	require.NoError(t, err)
	require.Equal(t, []string{"29500"}, got, "as MASTER_PORT, where no port could be kept free")
}

// The words are those of a real shell, which gets no text that it would expand.
func TestSplitWords(t *testing.T) {
	for _, text := range []string{
		"", "  ", "a", " a  b\tc ", `'a b' "c d"`, `a'b'"c"d`, `''`, `"" ''`, `a\ b \'`, `\\ \a`,
		`"a\b" "\"" "\\" "\$x"`,
		`'\'`, "a\\\nb", "\"a\\\nb\"", "\\\n", `"'" '"'`, `--json '{"a": 1}'`, "\"\\`\"", `a"b c"'d e'f`,
	} {
		words, err := launch.SplitWords(text)
		require.NoError(t, err, text)
		script := "for w in " + text + "\n" + `do printf '%s\0' "$w"; done`
		want, err := exec.CommandContext(t.Context(), "sh", "-c", script).Output()
		require.NoError(t, err, text)
		got := strings.Join(words, "\x00")
		if len(words) > 0 {
			got += "\x00"
		}
		require.Equal(t, string(want), got, text)
	}
	words, err := launch.SplitWords(`$HOME *.py ~ a#b #c a;b|c&d <e >f (g) $(h) "$i" {rank}`)
	require.NoError(t, err)
	require.Equal(t, strings.Fields(`$HOME *.py ~ a#b #c a;b|c&d <e >f (g) $(h) $i {rank}`), words)
	words, err = launch.SplitWords("a\n'b\nc'\n")
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b\nc"}, words, "a newline separates, too, where a shell would end the command")
	for text, says := range map[string]string{
		`a 'b`:   "the quote ' has no end",
		`a "b'`:  `the quote " has no end`,
		`a "b\"`: `the quote " has no end`,
		`a\`:     "nothing follows the last backslash",
	} {
		_, err := launch.SplitWords(text)
		require.EqualError(t, err, says)
	}
}

// Every list of words can be written.
func FuzzSplitWords(f *testing.F) {
	f.Add("a b", "it's", "")
	f.Add("\n", `\`, `"`)
	f.Fuzz(func(t *testing.T, a, b, c string) {
		var text strings.Builder
		for _, w := range []string{a, b, c} {
			text.WriteString("'" + strings.ReplaceAll(w, "'", `'\''`) + "' ")
		}
		words, err := launch.SplitWords(text.String())
		require.NoError(t, err)
		require.Equal(t, []string{a, b, c}, words)
		_, _ = launch.SplitWords(a) // it does not panic
	})
}
