package rdma

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMarkOdd(t *testing.T) {
	rows := [][]string{{"0", "a", "x"}, {"1", "b", "x"}, {"2", "b"}, {"3", "b", "y", "z"}}
	require.True(t, markOdd(rows, 1))
	require.Equal(t, [][]string{{"0", "a *", "x"}, {"1", "b", "x"}, {"2", "b"}, {"3", "b", "y *", "z"}}, rows)
	require.False(t, markOdd([][]string{{"0", "a"}}, 1))
	require.False(t, markOdd(nil, 1))
}
