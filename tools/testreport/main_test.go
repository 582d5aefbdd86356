package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReport(t *testing.T) {
	tests := []struct {
		name   string
		in     string
		run    run
		want   string
		failed bool
	}{
		{
			name: "a passing test is silent",
			in: `{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:5: hello\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"--- PASS: TestA (0.00s)\n"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Output":"PASS\n"}
{"Action":"output","Package":"p","Output":"ok  \tp\t0.003s\n"}
{"Action":"pass","Package":"p"}
`,
			want: "ok  \tp\t0.003s\n",
		},
		{
			name: "a skipped test is reported at the end, on one line",
			in: `{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:5: no engine:\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"        cannot connect\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"--- SKIP: TestA (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Output":"ok  \tp\t0.003s\n"}
{"Action":"pass","Package":"p"}
`,
			want: "ok  \tp\t0.003s\nskipped: p TestA: no engine: cannot connect\n",
		},
		{
			name: "tests that are not in the sample are counted",
			in: `{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:5: not in the sample 7\n"}
{"Action":"skip","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestB","Output":"    a_test.go:6: not in the sample 7\n"}
{"Action":"skip","Package":"p","Test":"TestB"}
{"Action":"output","Package":"p","Output":"ok  \tp\t0.003s\n"}
{"Action":"pass","Package":"p"}
`,
			want: "ok  \tp\t0.003s\nskipped: 2 tests that are not in the sample 7\n",
		},
		{
			name: "a skipped test is a failure if tests are required",
			in: `{"Action":"output","Package":"p","Test":"TestA/b","Output":"        > [!exec:git] skip 'no git'\n"}
{"Action":"output","Package":"p","Test":"TestA/b","Output":"--- SKIP: TestA/b (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"TestA/b"}
{"Action":"output","Package":"p","Output":"ok  \tp\t0.003s\n"}
{"Action":"pass","Package":"p"}
`,
			run: run{required: true, sample: "7"},
			want: "ok  \tp\t0.003s\nskipped: p TestA/b: > [!exec:git] skip 'no git'\n" +
				"failed: PAIINIT_TEST_REQUIRE is set and 1 tests were skipped\n",
			failed: true,
		},
		{
			name: "required tests that are not in this run's sample",
			in: `{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:5: not in the sample 7\n"}
{"Action":"skip","Package":"p","Test":"TestA"}
`,
			run:  run{required: true, sample: "7"},
			want: "skipped: 1 tests that are not in the sample 7\n",
		},
		{
			name: "required tests that are not in the sample of a run without one",
			in: `{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:5: not in the sample 7\n"}
{"Action":"skip","Package":"p","Test":"TestA"}
`,
			run: run{required: true},
			want: "skipped: p TestA: not in the sample 7\n" +
				"failed: PAIINIT_TEST_REQUIRE is set and 1 tests were skipped\n",
			failed: true,
		},
		{
			name: "only the log of a failed test is printed",
			in: `{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:5: fine\n"}
{"Action":"output","Package":"p","Test":"TestB","Output":"    a_test.go:9: bad\n"}
{"Action":"fail","Package":"p","Test":"TestB"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Output":"FAIL\tp\t0.003s\n"}
{"Action":"fail","Package":"p"}
`,
			want:   "    a_test.go:9: bad\nFAIL\tp\t0.003s\nfailed: p TestB:\n    a_test.go:9: bad\n",
			failed: true,
		},
		{
			name: "the failed assertion comes last, without the other output",
			in: `{"Action":"output","Package":"p","Test":"TestA/b","Output":"    a_test.go:5: took 3 s\n"}
{"Action":"output","Package":"p","Test":"TestA/b","Output":"    a_test.go:9: \n"}
{"Action":"output","Package":"p","Test":"TestA/b","Output":"        \tError Trace:\ta_test.go:9\n"}
{"Action":"output","Package":"p","Test":"TestA/b","Output":"        \tError:      \tShould be true\n"}
{"Action":"output","Package":"p","Test":"TestA/b","Output":"    a_test.go:11: transcript\n"}
{"Action":"output","Package":"p","Test":"TestA/b","Output":"--- FAIL: TestA/b (0.00s)\n"}
{"Action":"fail","Package":"p","Test":"TestA/b"}
{"Action":"output","Package":"p","Test":"TestA","Output":"--- FAIL: TestA (0.00s)\n"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Output":"FAIL\tp\t0.003s\n"}
{"Action":"fail","Package":"p"}
`,
			want: "    a_test.go:5: took 3 s\n    a_test.go:9: \n        \tError Trace:\ta_test.go:9\n" +
				"        \tError:      \tShould be true\n    a_test.go:11: transcript\n--- FAIL: TestA/b (0.00s)\n" +
				"--- FAIL: TestA (0.00s)\nFAIL\tp\t0.003s\n" +
				"failed: p TestA/b:\n    a_test.go:9: \n        \tError Trace:\ta_test.go:9\n" +
				"        \tError:      \tShould be true\n",
			failed: true,
		},
		{
			name: "of a script comes the line that failed",
			in: `{"Action":"output","Package":"p","Test":"TestA/b","Output":"    testscript.go:609: WORK=$WORK\n"}
{"Action":"output","Package":"p","Test":"TestA/b","Output":"        > stdout up\n"}
{"Action":"output","Package":"p","Test":"TestA/b","Output":"        FAIL: b.txtar:1: no match\n"}
{"Action":"output","Package":"p","Test":"TestA/b","Output":"        [stderr]\n"}
{"Action":"fail","Package":"p","Test":"TestA/b"}
`,
			want: "    testscript.go:609: WORK=$WORK\n        > stdout up\n        FAIL: b.txtar:1: no match\n" +
				"        [stderr]\nfailed: p TestA/b:\n    testscript.go:609: WORK=$WORK\n        > stdout up\n" +
				"        FAIL: b.txtar:1: no match\n",
			failed: true,
		},
		{
			name: "the log of a test is printed if its package ends in the middle of the test",
			in: `{"Action":"output","Package":"p","Test":"TestA","Output":"panic: test timed out\n"}
{"Action":"output","Package":"p","Output":"FAIL\tp\t0.003s\n"}
{"Action":"fail","Package":"p"}
`,
			want:   "FAIL\tp\t0.003s\npanic: test timed out\n",
			failed: true,
		},
		{
			name: "a build failure",
			in: `{"ImportPath":"p","Action":"build-output","Output":"p.go:3: no\n"}
{"ImportPath":"p","Action":"build-fail"}
`,
			want:   "p.go:3: no\n",
			failed: true,
		},
		{
			name: "a line that is no event is copied",
			in:   "go: no such tool\n",
			want: "go: no such tool\n",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var out strings.Builder
			failed, err := report(strings.NewReader(test.in), &out, test.run)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, out.String()); diff != "" {
				t.Error(diff)
			}
			if failed != test.failed {
				t.Errorf("failed = %v", failed)
			}
		})
	}
}
