package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNotice(t *testing.T) {
	want, err := notice()
	require.NoError(t, err)
	got, err := os.ReadFile("../../NOTICE")
	require.NoError(t, err)
	require.Equal(t, want, string(got), "run make generate")
}
