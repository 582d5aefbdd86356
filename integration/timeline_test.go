package integration

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestTimeline starts one of four hosts late. The job asks for the timeline on rank 0 and, by its remote shell, on
// another rank; the report stays in the directory that rank 0 was told.
func TestTimeline(t *testing.T) {
	hosts := peersHosts(t, newLab(t), 4)
	dir := t.TempDir()
	for i := range hosts {
		hosts[i].flags = append(hosts[i].flags, "--report", "/run/report")
	}
	hosts[0].binds = map[string]string{"/run/report": dir}
	const command = "mpirun python3 " + allreduce + " && /run/bin/paiinit status --timeline &&" +
		" /run/bin/paiinit rsh worker-1 /run/bin/paiinit status --timeline &&" +
		" /run/bin/paiinit status --timeline=trace > /run/report/trace &&" +
		" /run/bin/paiinit status --html /run/report/now.html"
	containers := startAll(t, hosts[:3], "sh", "-c", command)
	waitLine(t, containers[0], "present=3")
	time.Sleep(2 * time.Second) // a slow host
	containers = append(containers, hosts[3].start(t, "sh", "-c", command))
	require.Equal(t, same(4, 0), statuses(t, containers))

	out := stdout(containers[0])
	require.Regexp(t, `(?s)4 ranks, from .*: launched after .*\nworker-3 was last: its container started \d.* s after`+
		` the first.*\nworker-3 +(?:[2-9]|\d\d).*S.*4 ranks, from .*worker-3 was last: its container started`, out)
	for name, content := range map[string]string{
		"report.html": "succeeded", "timeline.json": `"critical_path":"worker-3 was last`,
		"status.json": `"phase": "ended"`, "trace": "traceEvents", "now.html": "worker-3 was last",
	} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Contains(t, string(b), content, name)
		if name == "timeline.json" || name == "trace" {
			require.True(t, json.Valid(b), name)
		}
	}
	t.Log(out)
}

// TestReportOfAFailure leaves a report where a rank is missing. A directory that cannot be written changes nothing.
func TestReportOfAFailure(t *testing.T) {
	hosts := peersHosts(t, newLab(t), 3)
	dir := t.TempDir()
	for i := range hosts {
		hosts[i].flags = append(hosts[i].flags, "--timeout", "8s")
	}
	hosts[0].flags = append(hosts[0].flags, "--report", "/run/report")
	hosts[0].binds = map[string]string{"/run/report": dir}
	require.Equal(t, same(2, 75), statuses(t, startAll(t, hosts[:2], "true")))
	b, err := os.ReadFile(filepath.Join(dir, "report.html"))
	require.NoError(t, err)
	require.Contains(t, string(b), "failed, status 75")
	require.Contains(t, string(b), "worker-2 is missing")

	hosts[0].flags = append(hosts[0].flags, "--report", "/proc/self/report")
	containers := startAll(t, hosts[:2], "true")
	require.Equal(t, same(2, 75), statuses(t, containers))
	require.Contains(t, stderr(containers[0]), "the report cannot be written")
}
