package restart

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestBook: all ranks tell what rank 0 tells, and so does a container that joins later.
func TestBook(t *testing.T) {
	p := limited(3)
	var zero, other, late Book
	require.Nil(t, zero.Begun(1, time.Second, begin))
	require.Nil(t, zero.RestartingAttrs())
	require.Nil(t, zero.Restarts())
	require.True(t, zero.Left(p))
	require.False(t, zero.Left(Policy{}))
	require.Equal(t, "why", zero.Final(3, "why"))
	require.Contains(t, zero.Variables(p, 1, false), Variable{"PAIINIT_RESTARTS", "0"})
	require.Empty(t, other.Variables(Policy{}, 1, false))

	d := zero.Ended(p, End{Generation: 1, Status: 3, Rank: 1, Name: "worker-1", Cause: "it failed"},
		begin.Add(time.Minute))
	require.True(t, d.Again)
	require.NoError(t, other.Hear(zero.Tell(p, 2*time.Second, time.Hour)))
	order, text := zero.Told()
	require.Equal(t, 2*time.Second, order.Grace)
	require.NoError(t, late.Hear(text))
	for _, b := range []*Book{&other, &late} {
		told, _ := b.Told()
		require.Equal(t, order, told)
		require.Equal(t, zero.RestartingAttrs(), b.RestartingAttrs())
		require.Equal(t, 60.0, b.Restarts()[0].Ran)
		b.Cleared(time.Millisecond)
		require.Contains(t, b.Begun(2, time.Second, begin.Add(2*time.Minute)), "downtime")
		require.Equal(t, 2, b.Restarts()[0].Generation)
		require.Contains(t, b.Variables(Policy{}, 2, true), Variable{"TORCHELASTIC_RESTART_COUNT", "1"})
		require.Equal(t, "it worked, after 1 of 3 restarts", b.Final(0, "it worked"))
	}
}

func TestHearRefuses(t *testing.T) {
	for _, text := range []string{"", "{", `{"restarts":1}`, `{"restarts":1,"history":{"ends":-1}}`, `{"grace":"2s"}`} {
		var b Book
		require.ErrorContains(t, b.Hear([]byte(text)), "reading ", text)
		require.Nil(t, b.RestartingAttrs())
	}
	var zero, b Book
	zero.Ended(limited(1), failure, begin)
	require.NoError(t, b.Hear(zero.Tell(limited(1), -time.Second, -time.Second)))
	order, _ := b.Told()
	require.Zero(t, order.Grace)
	require.Zero(t, order.Rejoin)
}
