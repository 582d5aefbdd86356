package main

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/rendezvous"
)

func members(hosts ...string) []rendezvous.Member {
	var out []rendezvous.Member
	for i, h := range hosts {
		m := rendezvous.Member{Alias: "worker-" + string(rune('0'+i))}
		m.Host, m.Rank = h, i
		out = append(out, m)
	}
	return out
}

// A signal that comes while nobody is responsible waits for who will be; the others are not for keeping.
func TestSignalsBetweenTwoPhases(t *testing.T) {
	in := make(chan os.Signal)
	s := watchSignals(in, false)
	defer s.close()
	got := make(chan os.Signal, 2)
	in <- syscall.SIGUSR1
	in <- syscall.SIGTERM
	s.to(func(sig os.Signal) { got <- sig })
	require.Equal(t, syscall.SIGTERM, <-got)
	in <- syscall.SIGUSR1
	require.Equal(t, syscall.SIGUSR1, <-got)
	require.True(t, s.first())
	require.False(t, s.first())
}

func TestCommandOf(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"paiinit"}, "run"},
		{[]string{"paiinit", "env"}, "env"},
		{[]string{"paiinit", "--", "env"}, "run"},
		{[]string{"paiinit", "--role", "worker"}, "run"},
		{[]string{"paiinit", "mpirun"}, "run"},
		{[]string{"paiinit", "-h"}, "help"},
		{[]string{"paiinit", "--version"}, "version"},
	} {
		require.Equal(t, tt.want, commandOf(tt.args), "%q", tt.args)
	}
}
