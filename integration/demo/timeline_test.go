package main

import (
	"testing"
	"time"

	"github.com/paiinit/paiinit/integration/lab"
)

func TestTimeline(t *testing.T) {
	begin := time.Unix(1000, 0)
	at := func(ms int, text string) lab.Line {
		return lab.Line{Time: begin.Add(time.Duration(ms) * time.Millisecond), Text: text}
	}
	lines := []lab.Line{
		at(5, `20:53:38 worker-0: paiinit devel, job "demo"`),
		at(100, `all 4 ranks are present says the job`),
		at(330, `20:53:38 worker-2: all 4 present after 0.3 s`),
		at(350, `20:53:38 worker-0: all 4 present after 0.3 s`),
		at(400, `20:53:39 worker-0: launching mpirun python3 a.py`),
		at(500, `launching phase=launch command=x`),
	}
	got := timeline(lines, begin)
	if want := "all present 0.33s, launched 0.40s, done never"; got != want {
		t.Errorf("timeline: %s, want %s", got, want)
	}
}
