package hosts

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

var eachHosts = [][]string{{"node-a", "master-0"}, {"worker-0"}, {"worker-1"}, {"3"}, {"4-4"}}

func TestParseRanks(t *testing.T) {
	for list, want := range map[string][]int{
		"":                    {0, 1, 2, 3, 4},
		"0":                   {0},
		"0,3-4":               {0, 3, 4},
		"3-4,0,3":             {3, 4, 0},
		"2-2":                 {2},
		"node-a":              {0},
		"master-0,worker-1,1": {0, 2, 1},
		" 1 , 2 ":             {1, 2},
		"4-4":                 {4},
	} {
		got, err := ParseRanks(list, eachHosts)
		require.NoError(t, err, "%q", list)
		require.Equal(t, want, got, "%q", list)
	}
	for list, want := range map[string]string{
		"5":                      `"5": the job has the ranks 0 to 4`,
		"0-5":                    `"0-5": the job has the ranks 0 to 4`,
		"4-2":                    `"4-2": the first rank is higher than the last`,
		"-1":                     `"-1" is not a rank`,
		"1-":                     `"1-" is not a rank`,
		"+1":                     `"+1" is not a rank`,
		"1-+2":                   `"1-+2" is not a rank`,
		"0,,1":                   `"" is not a rank`,
		"worker-9":               `"worker-9" is not a rank, a range of ranks such as 3-5, or the name of a host`,
		"99999999999999999999":   "is not a rank",
		"0-99999999999999999999": "is not a rank",
	} {
		_, err := ParseRanks(list, eachHosts)
		require.ErrorContains(t, err, want, "%q", list)
	}
}

func FuzzParseRanks(f *testing.F) {
	for _, seed := range []string{"", "0,3-4", "worker-1", "4-2", ",", "-"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, list string) {
		ranks, err := ParseRanks(list, eachHosts)
		if err != nil {
			return
		}
		require.NotEmpty(t, ranks)
		for i, rank := range ranks {
			require.True(t, rank >= 0 && rank < len(eachHosts))
			require.NotContains(t, slices.Delete(slices.Clone(ranks), i, i+1), rank)
		}
	})
}
