package launch

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// everything has a value in each field, so that each variable appears in a golden.
var everything = Setup{
	TempDir:         "/run/paiinit/tmp",
	Hostfile:        "/run/paiinit/hostfile",
	CountedHostfile: "/run/paiinit/hostfile.hydra",
	Agent:           []string{"/usr/bin/paiinit", "rsh"},
	AgentPath:       "/run/paiinit/bin/ssh",
	Interface:       "eth1",
	Several:         true,
	Network:         "10.0.0.0/24",
	Root:            true,
}

// goldenName returns the launcher's name in lower case, with letters and digits only.
func goldenName(l *Launcher) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) {
			return -1
		}
		return unicode.ToLower(r)
	}, l.Name)
}

func TestLauncherGoldens(t *testing.T) {
	require.NoError(t, everything.Check())
	var all []Var
	for _, l := range launchers {
		if l.Variables == nil && l.Manual == "" {
			continue // paiinit sets no variables for it
		}
		var vars []Var
		if l.Variables != nil {
			vars = l.Variables(everything)
			require.Empty(t, l.Variables(Setup{}), "an empty Setup gives no variables")
		}
		all = append(all, vars...)
		t.Run(goldenName(l), func(t *testing.T) {
			var got strings.Builder
			for _, v := range vars {
				fmt.Fprintf(&got, "%s=%s\n    %s\n", v.Name, v.Value, v.Reason)
			}
			if l.Manual != "" {
				fmt.Fprintf(&got, "%s\n", l.Manual)
			}
			file := filepath.Join("testdata", goldenName(l)+".golden")
			if *update {
				require.NoError(t, os.WriteFile(file, []byte(got.String()), 0o644))
			}
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	require.Equal(t, all, Environment(everything))
	names := map[string]bool{}
	for _, v := range all {
		require.False(t, names[v.Name], "%s is set by two launchers", v.Name)
		names[v.Name] = true
	}
}

func TestCheck(t *testing.T) {
	require.NoError(t, Setup{}.Check())
	for name, tt := range map[string]struct {
		change func(*Setup)
		want   string
	}{
		"colon":           {func(l *Setup) { l.Agent[1] = "a:b" }, `agent word "a:b": only letters`},
		"blank":           {func(l *Setup) { l.Agent[1] = "a b" }, `agent word "a b"`},
		"empty word":      {func(l *Setup) { l.Agent[1] = "" }, `agent word ""`},
		"quote":           {func(l *Setup) { l.Agent[1] = `"` }, `agent word "\""`},
		"dollar":          {func(l *Setup) { l.Agent[1] = "$HOME" }, `agent word "$HOME"`},
		"relative agent":  {func(l *Setup) { l.Agent[0] = "paiinit" }, `agent "paiinit": not an absolute path`},
		"relative path":   {func(l *Setup) { l.AgentPath = "ssh" }, `agent "ssh": want an absolute path`},
		"blank in path":   {func(l *Setup) { l.AgentPath = "/a b/ssh" }, `agent "/a b/ssh"`},
		"hostfile":        {func(l *Setup) { l.Hostfile = "hosts" }, `hostfile "hosts": want an absolute path`},
		"hostfile, quote": {func(l *Setup) { l.CountedHostfile = "/a`b" }, "hostfile \"/a`b\""},
		"interface":       {func(l *Setup) { l.Interface = "10.0.0.0/8" }, `interface "10.0.0.0/8": not the name`},
		"two interfaces":  {func(l *Setup) { l.Interface = "eth0,eth1" }, `interface "eth0,eth1"`},
		"network":         {func(l *Setup) { l.Network = "eth1" }, `network "eth1": want the form`},
	} {
		t.Run(name, func(t *testing.T) {
			l := everything
			l.Agent = append([]string{}, l.Agent...)
			tt.change(&l)
			require.ErrorContains(t, l.Check(), tt.want)
		})
	}
}

func TestMerge(t *testing.T) {
	environ := []string{"PATH=/bin", "A=user", "B=", "A=second", "novalue", "E=same"}
	vars := []Var{
		{"A", "ours", "why a"}, {"B", "ours", "why b"}, {"C", "ours", "why c"},
		{"novalue", "ours", "why n"},
		{"E", "same", "why e"},
		{"C", "again", "twice"},
	}
	before := append([]string{}, environ...)
	out, kept := Merge(environ, vars)
	require.Equal(t, []string{"PATH=/bin", "A=user", "B=", "A=second", "novalue", "E=same", "C=ours"}, out)
	require.Equal(t, []Var{
		{"A", "user", "why a"}, {"B", "", "why b"}, {"novalue", "", "why n"}, {"C", "ours", "twice"},
	}, kept)
	require.Equal(t, before, environ)

	out, kept = Merge(nil, nil)
	require.Empty(t, out)
	require.Empty(t, kept)
}

func TestLeftovers(t *testing.T) {
	environ := []string{
		"SLURM_JOBID=7", "SLURM_PROCID=0", "PATH=/bin", "PBS_NODEFILE=/n",
		"LSB_HOSTS=a b", "SLURM_JOBID=8", "XLSB_HOSTS=1",
	}
	found := Leftovers(environ)
	var names []string
	for _, v := range found {
		require.NotEmpty(t, v.Reason)
		names = append(names, v.Name+"="+v.Value)
	}
	require.Equal(t, []string{"SLURM_JOBID=7", "PBS_NODEFILE=/n", "LSB_HOSTS=a b", "SLURM_JOBID=8"}, names)
	require.Equal(t, []string{"SLURM_PROCID=0", "PATH=/bin", "XLSB_HOSTS=1"}, Without(environ, found))
	require.Empty(t, Leftovers([]string{"PATH=/bin", "MASTER_PORT=23456"}))
	link := []string{"MASTER_PORT=tcp://10.0.0.11:6379", "PATH=/bin"}
	require.Equal(t, []string{"PATH=/bin"}, Without(link, Leftovers(link)))
}
