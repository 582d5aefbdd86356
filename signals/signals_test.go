package signals

import (
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Between two phases no function is responsible for signals: the last rank may come together with SIGTERM.
func TestTerminatingSignalIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := make(chan os.Signal)
		s := Watch(in, false)
		var got []os.Signal
		take := func(sig os.Signal) { got = append(got, sig) }

		for _, sig := range []os.Signal{syscall.SIGUSR1, syscall.SIGTERM, syscall.SIGWINCH, syscall.SIGINT} {
			in <- sig
		}
		s.To(take)
		in <- syscall.SIGUSR2
		s.To(nil)
		require.Equal(t, []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGUSR2}, got,
			"signals that ask to end, in order, once")

		in <- syscall.SIGQUIT
		in <- syscall.SIGHUP
		s.To(nil)
		s.To(take)
		s.To(nil)
		require.Equal(t, syscall.SIGQUIT, got[len(got)-1],
			"SIGQUIT is kept until the next phase; SIGHUP does not ask to end")
		s.Close()
	})
}

// A person hurries by pressing Ctrl-C again. What a supervisor repeats does not.
func TestHurry(t *testing.T) {
	const term, interrupt, kill, quit = syscall.SIGTERM, syscall.SIGINT, syscall.SIGKILL, syscall.SIGQUIT
	type later struct {
		after time.Duration
		sig   syscall.Signal
	}
	for name, test := range map[string]struct {
		terminal bool
		in       []later
		want     []os.Signal
	}{
		"TERM":           {false, []later{{0, term}, {0, term}, {time.Second, term}}, []os.Signal{term, term, term}},
		"INT, then TERM": {false, []later{{0, interrupt}, {0, term}}, []os.Signal{interrupt, term}},
		"TERM, then INT": {true, []later{{0, term}, {0, interrupt}}, []os.Signal{term, interrupt}},
		"INT twice": {
			false, []later{{0, interrupt}, {2 * time.Second, interrupt}}, []os.Signal{interrupt, interrupt, kill},
		},
		"INT much later": {
			false, []later{{0, interrupt}, {2100 * time.Millisecond, interrupt}}, []os.Signal{interrupt, interrupt},
		},
		"INT on a terminal": {
			true, []later{{0, interrupt}, {time.Hour, interrupt}}, []os.Signal{interrupt, interrupt, kill},
		},
		"QUIT on a terminal": {true, []later{{0, quit}, {0, quit}}, []os.Signal{quit, quit}},
		"INT with TERM between": {
			false, []later{{0, interrupt}, {0, term}, {time.Second, interrupt}},
			[]os.Signal{interrupt, term, interrupt, kill},
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			in := make(chan os.Signal)
			s := Watch(in, test.terminal)
			var got []os.Signal
			s.To(func(sig os.Signal) { got = append(got, sig) })
			for _, l := range test.in {
				time.Sleep(l.after)
				in <- l.sig
			}
			s.To(nil)
			require.Equal(t, test.want, got, name)
			s.Close()
		})
	}
}

// A signal that asks to end, and comes while no function is responsible, waits for the next one; others are dropped.
func TestSignalsBetweenTwoPhases(t *testing.T) {
	in := make(chan os.Signal)
	s := Watch(in, false)
	defer s.Close()
	got := make(chan os.Signal, 2)
	in <- syscall.SIGUSR1
	in <- syscall.SIGTERM
	s.To(func(sig os.Signal) { got <- sig })
	require.Equal(t, syscall.SIGTERM, <-got)
	in <- syscall.SIGUSR1
	require.Equal(t, syscall.SIGUSR1, <-got)
	require.True(t, s.First())
	require.False(t, s.First())
}
