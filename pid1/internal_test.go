package pid1

import (
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestHandover(t *testing.T) {
	for _, h := range []handover{
		{parent: 1, init: true, signals: 3, status: 6, slack: 50000, secrets: []int{}},
		{parent: 4711, signals: 10, status: 11, slack: -1, secrets: []int{-1, 12}},
	} {
		got, ok := parseHandover(h.String(), len(h.secrets))
		require.True(t, ok)
		require.Equal(t, h, got)
		_, ok = parseHandover(h.String(), len(h.secrets)+1)
		require.False(t, ok)
	}
	for _, value := range []string{
		"", "1", "1 1 3", "1 1 3 6", "1 1 3 x 5", "1 1 3 -1 5", "1 1 3 6 -2", "1 1  3 5", "1 1 3 6 7 8", "0 1 3 6 5",
	} {
		_, ok := parseHandover(value, 0)
		require.False(t, ok, "%q", value)
	}
}

func TestTake(t *testing.T) {
	value, rest := take([]string{"A=1", "AB=2", "A=3", "A"}, "A")
	require.Equal(t, "1", *value)
	require.Equal(t, []string{"AB=2", "A"}, rest)

	value, rest = take([]string{"AB=2"}, "A")
	require.Nil(t, value)
	require.Equal(t, []string{"AB=2"}, rest)
}

func TestCleanFiles(t *testing.T) {
	const (
		text  = "00400000-00600000 r-xp 00001000 fe:00 4711                               /sbin/paiinit\n"
		clean = "Rss:                1000 kB\nAnonymous:             0 kB\nVmFlags: rd ex mr mw me \n"
		dirty = "Rss:                1000 kB\nAnonymous:             4 kB\n"
	)
	for name, test := range map[string]struct {
		smaps string
		want  []mapping
	}{
		"text": {text + clean, []mapping{{0x400000, 0x600000}}},
		"two": {
			text + clean + "7f00-8f00 r--p 0 fe:00 1 /lib/with spaces\n" + clean,
			[]mapping{{0x400000, 0x600000}, {0x7f00, 0x8f00}},
		},
		"dirty":    {text + dirty, nil},
		"the next": {text + dirty + "7f00-8f00 r--p 0 fe:00 1 /x\n" + clean, []mapping{{0x7f00, 0x8f00}}},
		"deleted":  {"7f00-8f00 r-xp 0 fe:00 1 /x (deleted)\n" + clean, []mapping{{0x7f00, 0x8f00}}},
		"data":     {"7f00-8f00 rw-p 0 fe:00 1 /x\n" + clean, nil},
		"heap":     {"7f00-8f00 r--p 0 00:00 0 \n" + clean, nil},
		"vdso":     {"7f00-8f00 r-xp 0 00:00 0 [vdso]\n" + clean, nil},
		"no pages": {text, nil},
		"cut":      {text + "Anonymous:  ", nil},
		"other":    {text + "Anonymous\nAnonymous: 0\nAnonymousness: 0 kB\n", nil},
		"backward": {"8f00-7f00 r-xp 0 fe:00 1 /x\n" + clean, nil},
		"words":    {"from-to r-xp 0 fe:00 1 /x\n" + clean, nil},
		"short":    {"7f00-8f00\n" + clean, nil},
		"nothing":  {"", nil},
		"orphan":   {clean, nil},
	} {
		require.ElementsMatch(t, test.want, cleanFiles([]byte(test.smaps)), name)
	}
	smaps, err := os.ReadFile("/proc/self/smaps")
	require.NoError(t, err)
	require.NotEmpty(t, cleanFiles(smaps))
}

// environBlock refuses arguments that are not the kernel's.
func TestEnvironBlockOfForeignArguments(t *testing.T) {
	for _, args := range [][]string{nil, {}, {""}, {"paiinit", "run"}, {string([]byte("on the heap"))}} {
		_, err := environBlock(args)
		require.Error(t, err)
	}
	block, err := environBlock(os.Args)
	require.NoError(t, err)
	environ, err := os.ReadFile("/proc/self/environ")
	require.NoError(t, err)
	require.Equal(t, environ, block)
}

// TestShedWhenIdle: a long wait sheds once, and a job that runs sheds once more, whether or not the wait was long.
func TestShedWhenIdle(t *testing.T) {
	never := func() time.Duration { return 0 }
	for _, wait := range []time.Duration{waitingShedAfter / 2, waitingShedAfter * 3} {
		synctest.Test(t, func(t *testing.T) {
			settled, stop := make(chan struct{}, 1), make(chan struct{})
			var sheds atomic.Int32
			var waiting sync.WaitGroup
			waiting.Go(func() { shedWhenIdle(settled, stop, never, func() { sheds.Add(1) }) })
			time.Sleep(wait)
			synctest.Wait()
			want := int32(0)
			if wait > waitingShedAfter {
				want = 1
			}
			require.Equal(t, want, sheds.Load())
			settled <- struct{}{}
			time.Sleep(agentShedAfter - 1)
			synctest.Wait()
			require.Equal(t, want, sheds.Load())
			time.Sleep(time.Hour)
			synctest.Wait()
			require.Equal(t, want+1, sheds.Load())
			close(stop)
			waiting.Wait()
		})
	}
}

// TestNoShedWhileProcessorsAreShort: an agent that waits for processors sheds as soon as it gets them, and anyway after
// a while.
func TestNoShedWhileProcessorsAreShort(t *testing.T) {
	for name, busy := range map[string]time.Duration{"for a while": 25 * time.Second, "all the time": time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				settled, stop := make(chan struct{}, 1), make(chan struct{})
				begin := time.Now()
				delay := func() time.Duration { return min(time.Since(begin), busy) * 9 / 10 }
				shed := make(chan time.Time, 10)
				var waiting sync.WaitGroup
				waiting.Go(func() { shedWhenIdle(settled, stop, delay, func() { shed <- time.Now() }) })
				want := min(busy.Truncate(waitingShedAfter)+2*waitingShedAfter, (shedTries+1)*waitingShedAfter)
				require.Equal(t, want, (<-shed).Sub(begin))
				settled <- struct{}{}
				time.Sleep(waitingShedAfter * (shedTries + 1))
				require.Len(t, shed, 1)
				close(stop)
				waiting.Wait()
			})
		})
	}
}
