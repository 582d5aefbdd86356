package early

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCommandOf(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"paiinit"}, "run"},
		{[]string{"paiinit", "env"}, "env"},
		{[]string{"paiinit", "--", "env"}, "run"},
		{[]string{"paiinit", "--role", "worker"}, "run"},
		{[]string{"paiinit", "mpirun"}, "run"},
		{[]string{"paiinit", "-h"}, "help"},
		{[]string{"paiinit", "--version"}, "version"},
	} {
		require.Equal(t, tt.want, CommandOf(tt.args), "%q", tt.args)
	}
}
