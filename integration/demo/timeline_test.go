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
	lines = append(lines, at(900, "20:53:40 worker-0: the job has ended, status 0, after 0.7 s: well"))
	got := timeline(lines, begin)
	if want := "all present 0.33s, launched 0.40s, done 0.90s"; got != want {
		t.Errorf("timeline: %s, want %s", got, want)
	}
}
