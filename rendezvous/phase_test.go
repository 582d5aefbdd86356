package rendezvous

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func TestPhasesThatMayFollow(t *testing.T) {
	legal := map[Phase][]Phase{
		Gathering: {Prepared, Ended},
		Prepared:  {Gathering, Running, Ended},
		Running:   {Ended},
		Ended:     nil,
	}
	for _, from := range states {
		for _, to := range states {
			if from != to {
				require.Equal(t, slices.Contains(legal[from], to), from.mayBecome(to), "%s to %s", from, to)
			}
		}
	}
}

// An illegal change of phase is refused, and every waiting call returns a BugError.
func TestAnIllegalPhaseIsABug(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		zero, lines, _ := p.launch(2)
		entered := true
		require.True(t, zero.ask(func() { entered = zero.enter(Gathering) }))
		require.False(t, entered)
		var bug *BugError
		_, err := zero.Wait(t.Context())
		require.ErrorAs(t, err, &bug)
		require.ErrorContains(t, err, "a rank that is running cannot become gathering")
		require.ErrorAs(t, zero.Finish(t.Context(), Outcome{}, 0), &bug)
		require.Equal(t, Ended, zero.View().Phase)
		p.end(zero, lines[1])

		one := p.start(p.record(1), 2)
		one.ask(func() { one.enter(Running) })
		_, err = one.Gather(t.Context())
		require.ErrorAs(t, err, &bug)
		p.end(one)
	})
}
