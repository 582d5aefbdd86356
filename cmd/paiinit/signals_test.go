package main

import (
	"os"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// Between two phases nobody is responsible for signals: the last rank may come together with SIGTERM.
func TestTerminatingSignalIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := make(chan os.Signal)
		s := watchSignals(in)
		var got []os.Signal
		take := func(sig os.Signal) { got = append(got, sig) }

		for _, sig := range []os.Signal{syscall.SIGUSR1, syscall.SIGTERM, syscall.SIGWINCH, syscall.SIGINT} {
			in <- sig
		}
		s.to(take)
		in <- syscall.SIGUSR2
		s.to(nil)
		require.Equal(t, []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGUSR2}, got, "those that ask to end, in order, once")

		in <- syscall.SIGHUP
		s.to(nil)
		s.to(take)
		s.to(nil)
		require.Equal(t, syscall.SIGHUP, got[len(got)-1], "nobody after nobody")
		s.close()
	})
}
