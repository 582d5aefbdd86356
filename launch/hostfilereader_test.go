package launch_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/launch"
)

func TestMayBeDeepSpeed(t *testing.T) {
	for _, tt := range []struct {
		want    bool
		all     bool
		command []string
	}{
		{true, false, []string{"deepspeed", "train.py"}},
		{true, false, []string{"/opt/bin/deepspeed", "train.py"}},
		{true, false, []string{"python3", "-m", "deepspeed.launcher.runner", "train.py"}},
		{true, false, []string{"bash", "train.sh"}},
		{true, false, []string{"bash", "-lc", "deepspeed train.py"}},
		{true, false, []string{"python", "start.py"}},
		{true, false, nil},
		{true, true, []string{"deepspeed", "--no_ssh", "train.py"}},
		{false, true, []string{"bash", "train.sh"}},
		{false, false, []string{"mpirun", "python", "train.py"}},
		{false, false, []string{"horovodrun", "-np", "4", "python", "train.py"}},
		{false, false, []string{"torchrun", "train.py"}},
		{false, true, nil},
	} {
		var want []launch.HostfileReader
		if tt.want {
			want = []launch.HostfileReader{{Program: "deepspeed", Hostfile: "/job/hostfile"}}
		}
		require.Equal(t, want, launch.HostfileReaders(tt.command, tt.all), "%v", tt.command)
	}
}
