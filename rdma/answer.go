package rdma

import (
	"encoding/json"
	"fmt"
	"os"
)

// At returns the Config of this container, or of another container whose files are below root: its device files cannot
// be opened.
func At(root string) Config {
	if root == "/" {
		return System()
	}
	tree := os.DirFS(root)
	return Config{Root: tree, Limits: TreeLimits(tree)}
}

// Answer is the output of `paiinit rdma --json`.
type Answer struct {
	Report
	// Summary is the report as text, Record as other ranks judge it.
	Summary string `json:"summary"`
	Record  []byte `json:"record"`
	// Variables are the variables, by name, that commands get if every rank is like this one.
	Variables map[string]string `json:"variables"`
}

// Answer returns the report with its summary.
func (r Report) Answer(variables map[string]string) Answer {
	s := r.Summary()
	return Answer{r, s.String(), s.Encode(), variables}
}

// RankReport is the report of one rank of a job.
type RankReport struct {
	Rank    int     `json:"rank"`
	Name    string  `json:"name"`
	Report  *Answer `json:"report"` // null: see Error
	Error   string  `json:"error"`
	Summary Summary `json:"-"` // of the report, once JudgeReports has decoded it
}

// Read takes over what `paiinit rdma --json` has printed on the rank, or the reason why there is no output.
func (r *RankReport) Read(output []byte, err error) {
	var answer Answer
	if err == nil {
		if err = json.Unmarshal(output, &answer); err != nil {
			err = fmt.Errorf("reading its answer: %w", err)
		}
	}
	if err != nil {
		r.Error = err.Error()
		return
	}
	r.Report = &answer
}

// JobReport is the output of `paiinit rdma --all --json`.
type JobReport struct {
	Verdict string       `json:"verdict"`
	Fabric  Kind         `json:"fabric"` // "none" for TCP
	Lacks   string       `json:"lacks"`  // which ranks prevent a better one, and why
	Notes   string       `json:"notes"`
	Ranks   []RankReport `json:"ranks"`
}

// JudgeReports judges the reports of all ranks. If a rank has no report, its Error says why. fold writes lacks on one
// line.
func JudgeReports(ranks []RankReport, fold func([]Lack) string) (JobReport, Verdict, error) {
	summaries := make([]Summary, len(ranks))
	for i := range ranks {
		r := &ranks[i]
		if r.Report == nil {
			continue
		}
		var err error
		if r.Summary, err = DecodeSummary(r.Report.Record); err != nil {
			return JobReport{}, Verdict{}, fmt.Errorf("rank %d: %w", r.Rank, err)
		}
		summaries[i] = r.Summary
	}
	v := Judge(summaries)
	for i, l := range v.Lacks {
		if e := ranks[l.Rank].Error; e != "" {
			v.Lacks[i].Why = e
		}
	}
	return JobReport{v.String(), v.Fabric, fold(v.Lacks), fold(v.Notes), ranks}, v, nil
}

// API returns the interface through which libraries use the fabric, as package launch names it; "" leaves the choice to
// the launcher.
func (v Verdict) API() string {
	if v.Off {
		return ""
	}
	return [kinds]string{
		KindNone: "tcp", KindInfiniBand: "verbs", KindRoCE: "verbs", KindSoftware: "verbs", KindEFA: "efa",
	}[v.Fabric]
}
