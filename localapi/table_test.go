package localapi

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// changingJob answers with one phase after the other.
type changingJob struct {
	*job
	phases []Phase
}

func (j *changingJob) Status(ctx context.Context) *Status {
	s := j.job.Status(ctx)
	s.Phase, j.phases = j.phases[0], j.phases[1:]
	return s
}

func TestChanges(t *testing.T) {
	c := startServer(t, &changingJob{newJob(), []Phase{Gathering, Gathering, Ended, Gathering}})
	var seen []Phase
	for s, err := range c.Changes(t.Context(), false) {
		require.NoError(t, err)
		seen = append(seen, s.Phase)
	}
	require.Equal(t, []Phase{Gathering, Ended}, seen)

	for s, err := range c.Changes(t.Context(), false) {
		require.NoError(t, err)
		require.Equal(t, Gathering, s.Phase)
		break // without a second question, for which there is no phase
	}
	seen = nil
	for _, err := range (Client{Socket: "/nowhere"}).Changes(t.Context(), false) {
		var dial *DialError
		require.ErrorAs(t, err, &dial)
		seen = append(seen, "")
	}
	require.Len(t, seen, 1)
}
