package envspec

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDetect(t *testing.T) {
	when := func(name string) func(*reader) string {
		return func(r *reader) string {
			if r.has(name) {
				return name
			}
			return ""
		}
	}
	table := []scheduler{
		{name: "special", match: when("A")},
		{name: "common", match: when("B")},
		{name: "fallback", match: func(*reader) string { return "default" }, general: true},
	}
	for _, c := range []struct {
		name     string
		env      []string
		flag     string
		want     string
		source   string
		warnings []string
	}{
		{name: "the first that is seen", env: []string{"A=1"}, want: "special", source: "A"},
		{name: "the second", env: []string{"B=1"}, want: "common", source: "B"},
		{name: "blank is not seen", env: []string{"B= "}, want: "fallback", source: "default"},
		{
			name: "both", env: []string{"B=1", "A=1"}, want: "special", source: "A",
			warnings: []string{"using special, also saw common (B); override with PAIINIT_SYSTEM"},
		},
		{
			name: "forced by a variable", env: []string{"A=1", "PAIINIT_SYSTEM=common"}, want: "common",
			source: "PAIINIT_SYSTEM",
		},
		{
			name: "forced by a flag", env: []string{"PAIINIT_SYSTEM=special"}, flag: "common", want: "common",
			source: "--system",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newReader(context.Background(),
				Input{Environ: c.env, Flags: map[string]string{"PAIINIT_SYSTEM": c.flag}})
			got, err := r.detect(table)
			require.NoError(t, err)
			require.Equal(t, c.want, got.name)
			require.Equal(t, c.source, r.sources["system"])
			require.ElementsMatch(t, c.warnings, r.warnings)
		})
	}
}

func TestParseHostPort(t *testing.T) {
	for in, want := range map[string]hostPort{
		"10.0.0.4:6000":        {"10.0.0.4", 6000},
		"10.0.0.4":             {"10.0.0.4", 0},
		"10.0.0.4:022":         {"10.0.0.4", 22},
		"a_b:22":               {"a_b", 22},
		"n-1.svc.cluster.loc":  {"n-1.svc.cluster.loc", 0},
		"fe80::1":              {"fe80::1", 0},
		"::1:22":               {"::1:22", 0},
		"[fe80::1%eth0]:22":    {"fe80::1%eth0", 22},
		"[::1]":                {"::1", 0},
		"host:65535":           {"host", 65535},
		"1node":                {"1node", 0},
		"node_with_underscore": {"node_with_underscore", 0},
	} {
		hp, problem := parseHostPort(in)
		require.Empty(t, problem, in)
		require.Equal(t, want, hp, in)
	}
	for _, in := range []string{
		"", ":22", "host:", "host:0", "host:65536", "host:-1", "host:+1", "host:2 2", "10.0.0.4:22:33",
		"tcp://10.0.0.1:6379", " host",
		"010.0.0.4", "10.0.4", "1.2.3.400", "-a", "a-", "a b", "[10.0.0.1]:1", "[::1", "[::1]22", "[]:1", "a/b",
		"ä:1", "host:0x16",
	} {
		_, problem := parseHostPort(in)
		require.NotEmpty(t, problem, in)
	}
}

func TestSplitAlias(t *testing.T) {
	for in, want := range map[string]peerKey{
		"worker-0": {"worker", 0}, "gpu-worker-12": {
			"gpu-worker", 12,
		}, "ps.server-3": {"ps.server", 3}, "a~b-1": {"a~b", 1},
	} {
		role, index, ok := splitAlias(in)
		require.True(t, ok, in)
		require.Equal(t, want, peerKey{role, index}, in)
		require.Equal(t, in, alias(role, index))
	}
	for _, in := range []string{
		"", "worker", "-1", "worker-", "worker-01", "worker-x", "a b-1", "worker-99999999999", "--1",
	} {
		_, _, ok := splitAlias(in)
		require.False(t, ok, in)
	}
}
