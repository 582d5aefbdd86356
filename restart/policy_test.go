package restart

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestParseRestarts(t *testing.T) {
	for text, want := range map[string]int{"0": 0, "3": 3, "2147483647": math.MaxInt32, "unlimited": Unlimited} {
		got, err := ParseRestarts(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"", "-1", "+1", "-0", "1.5", "Unlimited", "2147483648", " 1"} {
		_, err := ParseRestarts(text)
		require.ErrorContains(t, err, `" is neither a number of restarts nor unlimited`, text)
	}
}

func TestParseStatuses(t *testing.T) {
	for list, want := range map[string][]int{
		"": nil, "2": {2}, "2,93": {2, 93}, " 2 , 93 ": {2, 93}, "255,1,1": {255, 1, 1},
	} {
		got, err := ParseStatuses(list)
		require.NoError(t, err, "%q", list)
		require.Equal(t, want, got, "%q", list)
	}
	for list, want := range map[string]string{
		"0":                      `"0" is the status of success, after which no job is restarted`,
		"2,0":                    `"0" is the status of success, after which no job is restarted`,
		"00":                     `"00" is the status of success, after which no job is restarted`,
		"256":                    `"256" is not an exit status, a number from 1 to 255`,
		"2,x":                    `"x" is not an exit status, a number from 1 to 255`,
		"2,":                     `"" is not an exit status, a number from 1 to 255`,
		",":                      `"" is not an exit status, a number from 1 to 255`,
		"-1":                     `"-1" is not an exit status, a number from 1 to 255`,
		"+1":                     `"+1" is not an exit status, a number from 1 to 255`,
		"-0":                     `"-0" is not an exit status, a number from 1 to 255`,
		"2 93":                   `"2 93" is not an exit status, a number from 1 to 255`,
		"2-93":                   `"2-93" is not an exit status, a number from 1 to 255`,
		"99999999999999999999,2": `"99999999999999999999" is not an exit status, a number from 1 to 255`,
	} {
		_, err := ParseStatuses(list)
		require.EqualError(t, err, want, "%q", list)
	}
}

// The figures that the manual promises.
func TestDefaults(t *testing.T) {
	p := Defaults()
	require.Equal(t, Policy{
		Restarts: 0, On: OnAny, Reset: 600 * time.Second, CrashCount: 3, CrashWindow: 10 * time.Second, Stalls: 3,
		Backoff: time.Second, MaxBackoff: 60 * time.Second,
	}, p)
	for restart, want := range map[int]int{0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 6: 16, 7: 32, 8: 60, 1 << 30: 60} {
		require.Equal(t, time.Duration(want)*time.Second, p.delay(restart), restart)
	}
}

func TestDelayLimits(t *testing.T) {
	for name, test := range map[string]struct {
		backoff, most, want time.Duration
	}{
		"none":        {0, time.Minute, 0},
		"negative":    {-1, time.Minute, 0},
		"no maximum":  {time.Second, 0, 0},
		"above":       {time.Hour, time.Minute, time.Minute},
		"no overflow": {1, math.MaxInt64, math.MaxInt64},
		"short":       {time.Millisecond, 3 * time.Millisecond, 3 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			p := Policy{Backoff: test.backoff, MaxBackoff: test.most}
			require.Zero(t, p.delay(1))
			require.Equal(t, test.want, p.delay(math.MaxInt32))
		})
	}
}
