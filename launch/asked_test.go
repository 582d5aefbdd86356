package launch

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAsked(t *testing.T) {
	for line, want := range map[string]Request{
		"mpirun a.out":                                   {},
		"mpirun -np 16 python train.py":                  {Ranks: 16},
		"mpiexec -n 8 ./a.out":                           {Ranks: 8},
		"mpirun --np 4 --map-by ppr:2:node a.out":        {Ranks: 4},
		"mpirun -np=4 a.out":                             {Ranks: 4},
		"mpirun -c 2 a.out -np 9":                        {Ranks: 2},
		"mpirun -H a,b:2 a.out":                          {Hosts: []string{"a", "b", "b"}},
		"mpirun --host a --host b -np 2 a.out":           {Ranks: 2, Hosts: []string{"a", "b"}},
		"mpiexec.hydra -hosts a,b a.out":                 {Hosts: []string{"a", "b"}},
		"mpirun --hostfile /h -x A=B -x C a.out":         {Hostfile: "/h"},
		"mpiexec -f /h -n 2 -genv A B a.out":             {Ranks: 2, Hostfile: "/h"},
		"mpirun --mca btl tcp,self -mca a b -np 3 a.out": {Ranks: 3},
		"mpirun --allow-run-as-root --tag-output -np 2 -H a:1,b:1 -bind-to none -map-by slot " +
			"-mca pml ob1 -mca btl ^openib -x PATH python t.py": {Ranks: 2, Hosts: []string{"a", "b"}},
		"mpirun --oversubscribe -np 4 a.out": {Ranks: 4},
	} {
		got, ok := Asked(strings.Fields(line))
		require.True(t, ok, line)
		require.Equal(t, want, got, line)
	}
	for _, line := range []string{
		"", "sh -c mpirun", "mpirun", "mpirun -np 2", "mpirun -np x a.out", "mpirun -np 0 a.out",
		"mpirun -N 2 a.out", "mpirun -npernode 2 a.out", "mpirun -ppn 2 a.out", "mpirun --app f",
		"mpirun -np 1 a.out : -np 2 b.out",
		"mpirun -H a:x a.out", "mpirun -H +n1 a.out", "mpirun -H a,,b a.out",
	} {
		_, ok := Asked(strings.Fields(line))
		require.False(t, ok, line)
	}
}

func TestFewestHosts(t *testing.T) {
	for _, tt := range []struct {
		ranks int
		slots []int
		want  int
	}{
		{0, []int{2, 2, 2}, 3},
		{0, []int{0, 2}, 1},
		{1, []int{1, 1}, 1},
		{2, []int{1, 1}, 2},
		{4, []int{1, 4}, 1},
		{5, []int{1, 4}, 2},
		{99, []int{1, 4}, 2},
		{3, nil, 0},
	} {
		require.Equal(t, tt.want, Request{Ranks: tt.ranks}.FewestHosts(tt.slots), "%v", tt)
	}
}
