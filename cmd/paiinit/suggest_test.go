package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMistyped(t *testing.T) {
	for word, want := range map[string]string{
		"statsu": "status", "STATUS": "status", "stauts": "status", "hotfile": "hostfile", "host": "hosts",
		"evn": "env", "ech": "each",
		"status": "status", "env": "env", "barier": "barrier", "vesion": "version",
		"": "", "nvidia-smi": "", "python": "", "sh": "", "mpirun": "", "horovodrun": "",
		"./run.sh": "", "sleep": "", "bash": "",
	} {
		require.Equal(t, want, mistyped(word), word)
	}
}
