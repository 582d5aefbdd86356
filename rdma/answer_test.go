package rdma

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestJudgeReports(t *testing.T) {
	usable := Summary{Devices: 1}
	usable.rails[KindRoCE].count = 1
	fold := func(lacks []Lack) string { return fmt.Sprint(lacks) }
	ranks := []RankReport{
		{Report: &Answer{Record: usable.Encode()}}, {Rank: 1, Error: "paiinit rdma ended there with status 255"},
	}
	report, v, err := JudgeReports(ranks, fold)
	require.NoError(t, err)
	require.Equal(t, []Lack{{1, "paiinit rdma ended there with status 255"}}, v.Lacks)
	require.Equal(t, KindRoCE, v.Wanted)
	require.Equal(t, JobReport{
		"TCP: not every rank can use RoCE", KindNone, "[{1 paiinit rdma ended there with status 255}]", "[]", ranks,
	}, report)
	require.Equal(t, usable, ranks[0].Summary)

	_, _, err = JudgeReports([]RankReport{{Rank: 7, Report: &Answer{}}}, fold)
	require.EqualError(t, err, "rank 7: decoding summary: 0 bytes, want 6 to 64")
}

func TestReadAnswer(t *testing.T) {
	probed := Report{Devices: []Device{{Name: "mlx5_0"}}, Limits: Limits{Memlock: -1}}
	answer := probed.Answer(map[string]string{"A": "1"})
	require.Equal(t, "1 device, not usable: device in another network namespace", answer.Summary)
	text, err := json.Marshal(answer)
	require.NoError(t, err)
	for name, tt := range map[string]struct {
		output string
		err    error
		want   string // error
	}{
		"a report":  {string(text), nil, ""},
		"no output": {"", nil, "reading its answer: unexpected end of JSON input"},
		"a number":  {"1", nil, "reading its answer: json: cannot unmarshal number into Go value of type rdma.Answer"},
		"no answer": {"", errors.New("no route"), "no route"},
	} {
		t.Run(name, func(t *testing.T) {
			r := RankReport{Rank: 3, Name: "worker-3"}
			r.Read([]byte(tt.output), tt.err)
			require.Equal(t, tt.want, r.Error)
			require.Equal(t, tt.want == "", r.Report != nil)
			if r.Report != nil {
				require.Equal(t, answer, *r.Report)
			}
		})
	}
}

func TestAPI(t *testing.T) {
	for kind, want := range map[Kind]string{
		KindNone: "tcp", KindInfiniBand: "verbs", KindRoCE: "verbs", KindEFA: "efa", KindOmniPath: "", KindIWARP: "",
		KindSoftware: "verbs",
	} {
		require.Equal(t, want, Verdict{Fabric: kind}.API(), kind)
		require.Empty(t, Verdict{Fabric: kind, Off: true}.API(), kind)
	}
}
