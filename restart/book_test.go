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
	require.Nil(t, zero.Begun(1, 0, time.Second, begin))
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
		require.Contains(t, b.Begun(2, 3*time.Second, 4*time.Second, begin.Add(2*time.Minute)), "downtime")
		require.Equal(t, 2, b.Restarts()[0].Generation)
		r := b.Restarts()[0]
		require.Equal(t, []float64{0.001, 3, 1}, []float64{r.Clear, r.Rejoin, r.Commit})
		require.Contains(t, b.Variables(Policy{}, 2, true), Variable{"TORCHELASTIC_RESTART_COUNT", "1"})
		require.Equal(t, "it worked, after 1 of 3 restarts", b.Final(0, "it worked"))
	}
}

// TestBookKnowsTheProgressBeforeTheFirstLaunch: without it, the first generation counts as progress.
func TestBookKnowsTheProgressBeforeTheFirstLaunch(t *testing.T) {
	p := limited(Unlimited)
	for first, want := range map[string]int{"step 0": 3, "": 4, "older": 4} {
		b := Book{First: first}
		for generation := 1; ; generation++ {
			b.Begun(generation, 0, 0, begin)
			d := b.Ended(p, End{Generation: generation, Status: generation, Progress: "step 0"}, begin)
			if !d.Again {
				require.Contains(t, d.Why, "no progress: ")
				require.Equal(t, want, generation, first)
				break
			}
		}
	}
}

func TestHearRefuses(t *testing.T) {
	for _, text := range []string{"", "{", `{"policy":{}}`, `{"policy":{},"history":{"ends":-1}}`, `{"grace":"2s"}`} {
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

// TestSuccession: the ranks that outlive rank 0 decide by its policy, and its next start goes on from what they tell.
func TestSuccession(t *testing.T) {
	p := limited(2)
	p.NotOn = []int{4}
	var zero, other, next Book
	_, text := other.Told()
	require.Nil(t, text)
	require.NoError(t, other.Hear(zero.Tell(p, time.Second, time.Hour)))
	require.Nil(t, other.Begun(1, 0, time.Second, begin))
	require.Nil(t, other.Restarts())
	require.Zero(t, other.Decision())

	order, _ := other.Told()
	require.Equal(t, p, order.Policy)
	lost := End{Generation: 1, Status: 75, Name: "worker-0", Cause: "rank 0 is gone", Kind: Lost, Own: true}
	require.True(t, other.Ended(order.Policy, lost, begin.Add(time.Minute)).Again)
	require.True(t, other.Decision().Again)

	next.Tell(p, time.Second, time.Hour)
	_, text = other.Told()
	text, rejoin, err := next.Adopt(text)
	require.NoError(t, err)
	require.Equal(t, order.Rejoin, rejoin)
	require.NoError(t, other.Hear(text))
	require.Equal(t, other.Restarts(), next.Restarts())
	require.Equal(t, 60.0, next.Restarts()[0].Ran)
	require.NotNil(t, next.Begun(2, 0, time.Second, begin.Add(2*time.Minute)))

	lost.Generation, lost.Status, lost.Own = 2, 4, false
	require.Equal(t, "--no-restart-on lists status 4", other.Ended(order.Policy, lost, begin.Add(time.Hour)).Why)
	_, _, err = next.Adopt(nil)
	require.ErrorContains(t, err, "reading ")
}
