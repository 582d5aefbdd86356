package launch

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"
)

// TestBlame compares what people read after a failure with testdata/blame. Each file has the program and its exit
// status, where its output is from, the output, and the text. Most outputs are those of real programs with three ranks
// on one host, of which rank 1 fails; "marked" is --tag-output, -prepend-rank, or --tee 3.
func TestBlame(t *testing.T) {
	files, err := filepath.Glob("testdata/blame/*.txtar")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			b, err := os.ReadFile(file)
			require.NoError(t, err)
			a := txtar.Parse(b)
			var program string
			var status int
			_, err = fmt.Sscan(string(a.Comment), &program, &status)
			require.NoError(t, err)
			tl := tailOfBytes(t, 20, a.Files[1].Data)
			l := tl.lastLines(splitLines(a.Files[0].Data, false), 20, true)
			scene := Scene{Place: "worker-0 (10.0.0.5)", Find: func(host string) string {
				return strings.NewReplacer("worker-2", "worker-2 (10.0.0.7)").Replace(host)
			}}
			o := scene.Outcome(program, Result{
				Code: status, Tail: l.stderr, OwnTail: l.own, Stdout: l.stdout, Blame: l.blame,
			}, nil)
			text := o.Text(0) + "\n"
			if flag.Lookup("update").Value.String() == "true" {
				a.Files[2].Data = []byte(text)
				require.NoError(t, os.WriteFile(file, txtar.Format(a), 0o600))
			}
			require.Equal(t, string(a.Files[2].Data), text)
		})
	}
}

// tailOfBytes returns the tail of a command that has written these bytes to stderr.
func tailOfBytes(t *testing.T, most int, text []byte) *tail {
	t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	require.NoError(t, err)
	defer func() { _ = null.Close() }()
	tl, err := newTail(null, false, most, []string{"worker-0", "worker-1", "worker-2"})
	require.NoError(t, err)
	_, err = tl.w.Write(text)
	require.NoError(t, err)
	require.NoError(t, tl.w.Close())
	tl.finish(nil)
	require.Zero(t, tl.lost)
	return tl
}

// TestBlameOfTruncatedReports: a launcher that hung and was killed may have written only a part of its report.
func TestBlameOfTruncatedReports(t *testing.T) {
	for name, tt := range map[string]struct {
		tail string
		want int
	}{
		"status": {`prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-host-0-22@1,4]
   Exit code:    3
--------------------------------------------------------------------------`, 3},
		"signal": {`--------------------------------------------------------------------------
prterun noticed that process rank 4 with PID 43 on node host-2 exited on
signal 9 (Killed).
--------------------------------------------------------------------------`, 137},
		"signal on one line": {
			"prterun noticed that process rank 4 with PID 43 on node h exited on signal 11 (Segmentation fault).", 139,
		},
		"status, behind much output": {strings.Repeat("a line of another rank, which fills the report\n", 16) + `thus
causing the job to be terminated. The first process to do so was:

   Process name: [prterun-host-0-22@1,4]
   Exit code:    3`, 3},
		"nothing":   {"Traceback (most recent call last):\nValueError: signal 9 is what I wanted", 0},
		"no status": {"   Exit code:    0\n   Exit code:    999\n   Exit code:    99999999999999999999", 0},
		"no signal": {"exited on signal 99 (What)", 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := readBlame(newPrinted(strings.Split(tt.tail, "\n")))
			require.Equal(t, tt.want, b.status())
		})
	}
}

// TestBlameBetweenHyphens: the lines of hyphens are those of Open MPI, of the job, or of both at once.
func TestBlameBetweenHyphens(t *testing.T) {
	hyphens := strings.Repeat("-", 74)
	framed := func(text string) string { return hyphens + "\n" + text + "\n" + hyphens + "\n" }
	const (
		aborted = "Primary job  terminated normally, but 1 process returned\na non-zero exit code."
		noRoute = "No network interface was found."
		exited  = "The first process to do so was:\n\n  Process name: [[1,1],2]\n  Exit code:    3"
		killed  = "mpirun noticed that process rank 1 with PID 5 on node h exited on signal 9 (Killed)."
		missing = "ORTE was unable to reliably start one or more daemons."
		gloo    = "RuntimeError: Horovod detected that one or more processes exited with non-zero status\n" +
			"Process name: 5\nExit code: 1\n"
		ofTheJob = "epoch 1, loss 0.3\n"

		rank2, noRouteCause = "MPI rank 2", "Open MPI: No network interface was found"
	)
	shorter, longer, many := hyphens[:60]+"\n", hyphens+"------\n", strings.Repeat("b\n", 30)
	for name, tt := range map[string]struct{ says, process, cause, rest string }{
		"a report":                      {framed(aborted) + framed(exited), rank2, "", ""},
		"two reports":                   {framed(exited) + framed(killed), rank2, "", ""},
		"no second report":              {framed(aborted), "", unnamedRank, ""},
		"a text before none":            {framed(noRoute) + framed(aborted), "", noRouteCause, ""},
		"a text before a report":        {framed(noRoute) + framed(exited), rank2, noRouteCause, ""},
		"a text behind a report":        {framed(exited) + framed(noRoute), rank2, "", noRoute},
		"a text between reports":        {framed(exited) + framed(noRoute) + framed(killed), rank2, "", noRoute},
		"a text behind Horovod's":       {gloo + framed(noRoute), "Horovod rank 5", "", noRoute},
		"a text behind that of daemons": {framed(missing) + ofTheJob + framed(noRoute), "", noRouteCause, ofTheJob},
		"an end and a report": {
			ofTheJob + hyphens + "\n" + ofTheJob + framed(exited), rank2, "", ofTheJob + ofTheJob,
		},
		"an end and a text": {ofTheJob + hyphens + "\n" + framed(noRoute), "", noRouteCause, ofTheJob},
		"a beginning":       {framed(exited) + hyphens + "\n" + ofTheJob, rank2, "", ofTheJob},
		"behind half lines": {
			"a" + framed(aborted) + "b " + framed(exited) + "c", rank2, "", "a" + hyphens + "\nb " + hyphens + "\nc",
		},
		"far behind a half line": {"a" + framed(exited) + many, rank2, "", "a" + hyphens + "\n" + many},
		"a table":                {shorter + ofTheJob + shorter, "", "", shorter + ofTheJob + shorter},
		"a table and a report": {
			longer + ofTheJob + longer + framed(exited), rank2, "", longer + ofTheJob + longer,
		},
		"a line and a report":    {longer + ofTheJob + framed(exited), rank2, "", longer + ofTheJob},
		"a beginning and a line": {hyphens + "\n" + ofTheJob + longer, "", "", ofTheJob + longer},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPrinted(splitLines([]byte(tt.says), false))
			b := readBlame(p)
			require.Equal(t, tt.process, b.Process)
			require.Equal(t, tt.cause, b.Cause)
			require.Equal(t, strings.TrimSpace(tt.rest), strings.Join(p.withoutOwn(), "\n"))
		})
	}
}

// TestBlameOnTheOtherStream: a process that is named there is not one that Open MPI did not name.
func TestBlameOnTheOtherStream(t *testing.T) {
	b, err := os.ReadFile("testdata/blame/openmpi-4.1.4-unnamed.txtar")
	require.NoError(t, err)
	unnamed := newPrinted(splitLines(txtar.Parse(b).Files[1].Data, false))
	named := newPrinted([]string{"mpirun noticed that process rank 4 with PID 4 on node h exited on signal 9 (Kill)."})
	require.Equal(t, Blame{Process: "MPI rank 4", Rank: "4", Host: "h", Signal: syscall.SIGKILL},
		readBlame(unnamed, named))
}

func TestText(t *testing.T) {
	long := Outcome{
		Status: 1, Reason: "the first cause\nanother line \x1b[31m", After: 192 * 60e9, Own: true,
		Stderr: strings.Repeat("a line of the job with ünicode\n", 200) + "the last line", Stdout: "out\nput\x00",
		Next: "kubectl logs worker-2; raise the memory limit",
	}
	require.Equal(t, "JOB FAILED, status 1, after 3h12m\n  the first cause\n  another line \\x1b[31m\n"+
		"  last lines of its stderr:\n    the last line\n  last lines of its stdout:\n    out\n    put\\x00\n"+
		"  next: kubectl logs worker-2; raise the memory limit",
		long.Text(0)[:len("JOB FAILED, status 1, after 3h12m\n  the first cause\n  another line \\x1b[31m\n"+
			"  last lines of its stderr:\n")]+long.Text(0)[strings.Index(long.Text(0), "    the last line"):])
	for limit := 1; limit < 7000; limit += 13 {
		text := long.Text(limit)
		require.LessOrEqual(t, len(text), limit)
		require.True(t, strings.ToValidUTF8(text, "") == text)
		if limit > 400 {
			require.True(t, strings.HasPrefix(text, "JOB FAILED, status 1, after 3h12m\n  the first cause\n"), text)
			require.True(t, strings.HasSuffix(text, long.Next), text)
			require.Contains(t, text, "the last line")
		}
	}
	require.Equal(t, "the job has ended, status 0, after 41 s: well",
		Outcome{Reason: "well", After: 41e9}.Text(0))
	require.Equal(t, "JOB STOPPED, status 143, after 41 s\n  worker-0 got SIGTERM",
		Outcome{Status: 143, Stopped: true, Reason: "worker-0 got SIGTERM", After: 41e9}.Text(0))
	require.Equal(t, "JOB FAILED, status 77, after 0.4 s\n  no secret",
		Outcome{Status: 77, Reason: "no secret", After: 4e8}.Text(0))
}

func TestClean(t *testing.T) {
	for line, want := range map[string]string{
		"\r 10%\r 20%":           " 20%",
		" 10%\r":                 " 10%",
		"\x1b[1;31mred\x1b[0m":   "red",
		"a\tb":                   "a    b",
		"plain":                  "plain",
		"\x1b]0;title\x07 stays": "\x1b]0;title\x07 stays",
	} {
		require.Equal(t, want, clean(line))
	}
}

func TestScene(t *testing.T) {
	find := func(host string) string { return host + " (10.0.0.7)" }
	blamed := Result{Code: 137, Blame: Blame{Process: "MPI rank 4", Rank: "4", Host: "w2", Signal: syscall.SIGKILL}}
	for _, tt := range []struct {
		want string
		r    Result
		ooms []OOM
	}{
		{"rank 0's command x ended with status 0", Result{Tail: []string{"fine"}}, nil},
		{"rank 0's command x ended with status 3 on w0", Result{Code: 3, Tail: []string{"a", "b"}}, nil},
		{"rank 0's command x ended with status 137 (SIGKILL) on w0", Result{Code: 137}, nil},
		{
			"rank 0's command x was killed by SIGKILL on w0: out of memory, 1 kill in its cgroup",
			Result{Signal: syscall.SIGKILL}, []OOM{{"w0", 1}},
		},
		{
			"rank 0's command x ended with status 1 on w0; out of memory, 2 kills in the cgroup of w1",
			Result{Code: 1}, []OOM{{"w1", 2}},
		},
		{"rank 0's command x ended with status 0 after SIGTERM", Result{Forwarded: syscall.SIGTERM}, nil},
		{
			"rank 0's command x was stopped by SIGTERM on w0",
			Result{Signal: syscall.SIGTERM, Forwarded: syscall.SIGTERM}, nil,
		},
		{
			"rank 0's command x was killed by SIGKILL after SIGTERM on w0",
			Result{Signal: syscall.SIGKILL, Forwarded: syscall.SIGTERM}, nil,
		},
		{"MPI rank 4 on w2 (10.0.0.7) was killed by SIGKILL", blamed, nil},
		{
			"MPI rank 4 on w2 (10.0.0.7) was killed by SIGKILL: out of memory, 1 kill in its cgroup",
			blamed, []OOM{{"w2 (10.0.0.7)", 1}},
		},
		{
			"MPI rank 4 on w2 (10.0.0.7) was killed by SIGKILL; out of memory, 1 kill in the cgroup of w1",
			blamed, []OOM{{"w1", 1}},
		},
	} {
		s := Scene{Place: "w0", Find: find}
		require.Equal(t, tt.want, s.Outcome("x", tt.r, tt.ooms).Reason)
	}
	require.Equal(t, "rank 7's command x ended with status 1", Scene{Rank: 7}.Outcome("x", Result{Code: 1}, nil).Reason)
	long := Scene{}.Outcome("x", Result{Code: 1, Tail: []string{strings.Repeat("y", 5000)}}, nil)
	require.Len(t, long.Stderr, tailWidth)
}

// TestStdoutTail: a stdout that is a pipe is passed on unchanged, and a closed one ends the command by SIGPIPE.
func TestStdoutTail(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	c := sh(`seq 1 200000; echo woe >&2; exit 3`)
	c.Stdout, c.TailLines = w, 2
	var content func() string
	c.Stderr, content = collect(t)
	read := make(chan []byte, 1)
	go func() {
		b, _ := io.ReadAll(r)
		read <- b
	}()
	got := run(t, c)
	require.NoError(t, w.Close())
	b := <-read
	require.Equal(t, []string{"199999", "200000"}, got.Stdout)
	require.Equal(t, []string{"woe"}, got.Tail)
	require.Equal(t, "woe\n", content())
	require.Equal(t, 200000, strings.Count(string(b), "\n"))
	require.True(t, strings.HasPrefix(string(b), "1\n2\n3\n"))

	r, w, err = os.Pipe()
	require.NoError(t, err)
	require.NoError(t, r.Close())
	defer func() { _ = w.Close() }()
	c = sh(`exec yes`)
	c.Stdout, c.TailLines = w, 2
	require.Equal(t, syscall.SIGPIPE, run(t, c).Signal)
}

// TestLostDaemon: Open MPI 5.0.7 reports the loss of a daemon in a frame, and may end with 0.
func TestLostDaemon(t *testing.T) {
	const frame = "echo ----; echo 'PRTE has lost communication with a remote daemon.'; echo; echo 'HNP daemon: ...';"
	for script, want := range map[string]bool{
		"(" + frame + "echo ----) >&2":                 true,
		"(" + frame + "seq 1000) >&2":                  true,
		"(" + frame + "echo ----) >&2; exit 1":         false, // the status tells enough
		"echo 'the ranks have lost communication' >&2": false,
		"true": false,
	} {
		c := sh(script)
		c.TailLines = 2
		c.Stderr, _ = collect(t)
		require.Equal(t, want, run(t, c).LostDaemon, script)
	}
}

// TestStdoutAndStderrInOnePipe: after 2>&1 the order of both streams stays as the command wrote them.
func TestStdoutAndStderrInOnePipe(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	c := sh(`i=0; while [ $i -lt 500 ]; do echo "out $i"; echo "err $i" >&2; i=$((i+1)); done; exit 1`)
	c.Stdout, c.Stderr, c.TailLines = w, w, 3
	read := make(chan []byte, 1)
	go func() {
		b, _ := io.ReadAll(r)
		read <- b
	}()
	got := run(t, c)
	require.NoError(t, w.Close())
	var want strings.Builder
	for i := range 500 {
		fmt.Fprintf(&want, "out %d\nerr %d\n", i, i)
	}
	require.Equal(t, want.String(), string(<-read))
	require.Equal(t, []string{"err 498", "out 499", "err 499"}, got.Tail)
	require.Empty(t, got.Stdout)
}

// TestStdoutFile: a regular file stays the command's own, and what it has written there is read at the end.
func TestStdoutFile(t *testing.T) {
	f, err := os.OpenFile(filepath.Join(t.TempDir(), "out"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	_, err = f.WriteString("before\n")
	require.NoError(t, err)
	c := sh(`test -f /dev/fd/1 && echo mine; exit 1`)
	c.Stdout, c.TailLines = f, 5
	c.Stderr, _ = collect(t)
	require.Equal(t, []string{"mine"}, run(t, c).Stdout)
}
