package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/paiinit/paiinit/integration/lab"
)

func TestParseRecord(t *testing.T) {
	for text, want := range map[string]map[string]string{
		``:                 {},
		`no record at all`: {},
		`time=2026-01-02T03:04:05Z level=INFO msg=heard phase=gather rank=2`: {
			"time": "2026-01-02T03:04:05Z", "level": "INFO", "msg": "heard", "phase": "gather", "rank": "2",
		},
		`msg="two \"words\" = three" phase="a b"  rank=1`: {"msg": `two "words" = three`, "phase": "a b", "rank": "1"},
		`msg="never closed phase=launch`:                  {"msg": `"never`, "phase": "launch"},
		`a=b=c =d e=`:                                     {"a": "b=c", "e": ""},
	} {
		if diff := cmp.Diff(want, parseRecord(text)); diff != "" {
			t.Errorf("parseRecord(%q): %s", text, diff)
		}
	}
}

func TestTimeline(t *testing.T) {
	begin := time.Unix(1000, 0)
	at := func(ms int, text string) lab.Line {
		return lab.Line{Time: begin.Add(time.Duration(ms) * time.Millisecond), Text: text}
	}
	lines := []lab.Line{
		at(5, `msg="this container is identified" phase=identify rank=0`),
		at(340, `msg="all ranks are present" phase=gather rank=1 size=4`),
		at(350, `msg="all ranks are present" phase=gather rank=0 size=4 last=worker-2`),
		at(390, `msg="removed a variable" phase=launch variable=SLURM_JOB_ID`),
		at(400, `msg=launching phase=launch command="mpirun python3 a.py" hosts=4`),
		at(500, `allreduce phase=launch command=x`),
	}
	got := timeline(lines, begin)
	if want := "all present 0.35s, launched 0.40s, done never"; got != want {
		t.Errorf("timeline: %s, want %s", got, want)
	}
}
