package sample

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// fake is a test with a name that notes why it is skipped.
type fake struct{ name, skipped string }

func (f *fake) Name() string     { return f.name }
func (f *fake) Skip(args ...any) { f.skipped = fmt.Sprint(args...) }

// chosen returns which of 3,000 tests run in a sample of one in three.
func chosen(t *testing.T, sample string) map[int]bool {
	t.Setenv(Variable, sample)
	all := make(map[int]bool)
	for i := range 3000 {
		f := &fake{name: fmt.Sprint("TestA/", i)}
		OneIn(f, 3)
		if f.skipped == "" {
			all[i] = true
		} else {
			require.Equal(t, Reason+sample, f.skipped)
		}
	}
	return all
}

// TestOneIn: a sample has its share of the tests, the same ones each time, and another one has others.
func TestOneIn(t *testing.T) {
	require.Len(t, chosen(t, ""), 3000)
	first, second := chosen(t, "1"), chosen(t, "2")
	require.InDelta(t, 1000, len(first), 150)
	require.Equal(t, first, chosen(t, "1"))
	both := 0
	for i := range second {
		if first[i] {
			both++
		}
	}
	require.InDelta(t, 333, both, 100)
}
