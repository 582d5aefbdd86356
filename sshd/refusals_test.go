package sshd

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// One line a minute for each kind, with the number of refusals between.
func TestRefusalsAreSaidOnceAMinute(t *testing.T) {
	var r refusals
	now := time.Unix(0, 0)
	lines, told := 0, 0
	for range 250 { // one a second
		if warn, unsaid := r.warn("10.0.0.1 no key", now); warn {
			lines, told = lines+1, told+1+unsaid
		}
		now = now.Add(time.Second)
	}
	require.Equal(t, 5, lines)
	require.Equal(t, 241, told)
	warn, unsaid := r.warn("10.0.0.2 no key", now)
	require.True(t, warn)
	require.Zero(t, unsaid)
	for i := range 10 * maxRefusals {
		r.warn(fmt.Sprint(i), now)
		require.LessOrEqual(t, len(r.seen), maxRefusals)
	}
}
