package main

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The command line of the job stays as it is, whatever it looks like.
func TestCommandIsKeptApart(t *testing.T) {
	for _, test := range []struct{ args, command string }{
		{"-- a", "a"},
		{"a", "a"},
		{"run a", "a"},
		{"run -- run a", "run a"},
		{"-- run a", "run a"},
		{"a -- b", "a -- b"},
		{"-- -- a", "-- a"},
		{"a --size 3 --help", "a --size 3 --help"},
		{"a _ --size 3", "a _ --size 3"},
		{"--size 3 a --rank 1", "a --rank 1"},
		{"--size=3 a --rank 1", "a --rank 1"},
		{"-size 3 a --rank 1", "a --rank 1"},
		{"--size 3 --insecure a -h", "a -h"},
		{"--insecure=true a -h", "a -h"},
		{"--size -- a", "a"}, // the value is --
		{"--job _ a -- b", "a -- b"},
		{"--job=_ a _ _ --insecure", "a _ _ --insecure"},
		{"--insecure help", "help"},
		{"- -x", "- -x"},
		{"", ""},
		{"--size 3", ""},
	} {
		args := []string{"paiinit"}
		for _, word := range strings.Fields(test.args) {
			args = append(args, strings.ReplaceAll(word, "_", ""))
		}
		want := []string{}
		for _, word := range strings.Fields(test.command) {
			want = append(want, strings.ReplaceAll(word, "_", ""))
		}
		var got []string
		err := newApp(nil, func(_ context.Context, s settings) error { got = s.command; return nil }).Run(context.Background(), runArgs(args))
		require.NoError(t, err, "%q", test.args)
		require.Equal(t, want, append([]string{}, got...), "%q", test.args)
	}
}
