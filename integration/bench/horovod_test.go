package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestReadTraining(t *testing.T) {
	const said = `{"begun": 103.5, "done": 105.25, "sum": 3.0, "hosts": ["b", "a"]}` + "\n"
	for name, out := range map[string]string{
		"mpirun":            "100.5\n" + said,
		"horovodrun --mpi":  "100.5\n[1,0]<stdout>:" + said,
		"horovodrun --gloo": "100.5\n[0]<stdout>:" + said + "[0]<stdout>:more\n",
	} {
		begun, done, err := readTraining(out, []string{"a", "b"})
		require.NoError(t, err, name)
		assert.Equal(t, [2]float64{3, 4.75}, [2]float64{begun, done}, name)
	}
	for out, want := range map[string]string{
		"":                  "no time of the start",
		said:                "no time of the start",
		"100.5\n":           "no line of rank 0",
		"100.5\nno hosts":   "no line of rank 0",
		"100.5\n{\"begun\"": "no line of rank 0",
		"100.5\n" + `{"begun": 1, "done": 2, "sum": 3, "hosts": ["a", "a"]}`: `on ["a" "a"], not 3 on ["a" "b"]`,
		"100.5\n" + `{"begun": 1, "done": 2, "sum": 1, "hosts": ["a"]}`:      `the sum is 1 on ["a"], not 3`,
	} {
		_, _, err := readTraining(out, []string{"a", "b"})
		assert.ErrorContains(t, err, want)
	}
}
