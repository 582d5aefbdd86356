// Command testreport converts the output of go test -json on its standard input back to the lines that go test prints,
// and adds a line for each skipped test with the reason, which go test does not print. It only counts the tests that do
// not belong to the sample of this run. Last comes what each failed test reported first, because its other output may
// be long.
//
// It exits with status 1 if a test or a build failed, or if all tests are required and one was skipped that belongs to
// the sample of this run.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
)

// event is an event of cmd/internal/test2json, or a build event of go help buildjson.
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
}

// frame matches the lines that only name the running test.
var frame = regexp.MustCompile(`^\s*=== (RUN|PAUSE|CONT|NAME)\s`)

// logged matches a line of t.Log, t.Skip or t.Error.
var logged = regexp.MustCompile(`^\s+\S+\.go:\d+: `)

// notInSample begins the reason of a test that integration/sample skips. The name of the sample follows.
const notInSample = "not in the sample "

func main() {
	required := flag.String("required", "", "if not empty, a skipped test is a failure (PAIINIT_TEST_REQUIRE)")
	sample := flag.String("sample", "", "the sample of this run; empty: all tests (PAIINIT_TEST_SAMPLE)")
	flag.Parse()
	failed, err := report(os.Stdin, os.Stdout, run{required: *required != "", sample: *sample})
	if err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
	}
	if failed || err != nil {
		os.Exit(1)
	}
}

// run says which tests may be skipped.
type run struct {
	required bool   // only those that are not in the sample
	sample   string // empty: all tests are in it
}

func report(r io.Reader, w io.Writer, this run) (failed bool, err error) {
	out := bufio.NewWriter(w)
	defer func() {
		if flushed := out.Flush(); err == nil {
			err = flushed
		}
	}()
	type test struct{ pkg, name string }
	output := make(map[test][]string)
	var order []test // tests in the order of their first output
	var skipped, causes []string
	left := make(map[string]int) // tests that are not in a sample, by its name
	end := func(t test) []string {
		lines := output[t]
		delete(output, t)
		return lines
	}
	write := func(lines ...string) {
		for _, line := range lines {
			_, _ = out.WriteString(line) // Flush returns the error
		}
	}
	in := bufio.NewScanner(r)
	in.Buffer(nil, 1<<30)
	for in.Scan() {
		var e event
		if json.Unmarshal(in.Bytes(), &e) != nil {
			write(in.Text(), "\n")
			continue
		}
		t := test{e.Package, e.Test}
		switch {
		case e.Action == "build-output", e.Action == "output" && e.Test == "" && e.Output != "PASS\n":
			write(e.Output)
		case e.Action == "output" && e.Test != "" && !frame.MatchString(e.Output):
			if _, ok := output[t]; !ok {
				order = append(order, t)
			}
			output[t] = append(output[t], e.Output)
		case e.Action == "build-fail":
			failed = true
		case e.Action == "fail" && e.Test != "":
			failed = true
			lines := end(t)
			write(lines...)
			if c := cause(lines); len(c) > 0 {
				causes = append(append(causes, fmt.Sprintf("failed: %s %s:\n", e.Package, e.Test)), c...)
			}
		case e.Action == "fail":
			failed = true
			// A panic or the timeout has ended the package in the middle of these tests.
			for _, t := range order {
				if t.pkg == e.Package {
					write(end(t)...)
				}
			}
			out.Flush()
		case e.Action == "skip" && e.Test != "":
			why := reason(end(t))
			name, ok := strings.CutPrefix(why, notInSample)
			if ok && (!this.required || name != "" && name == this.sample) {
				left[name]++
				continue
			}
			skipped = append(skipped, fmt.Sprintf("skipped: %s %s: %s\n", e.Package, e.Test, why))
		case e.Action == "pass":
			end(t)
			out.Flush()
		}
	}
	write(skipped...)
	for name, tests := range left {
		write(fmt.Sprintf("skipped: %d tests that are %s%s\n", tests, notInSample, name))
	}
	write(causes...)
	if this.required && len(skipped) > 0 {
		failed = true
		write(fmt.Sprintf("failed: PAIINIT_TEST_REQUIRE is set and %d tests were skipped\n", len(skipped)))
	}
	return failed, in.Err()
}

// maxCause is the number of lines that say why a test failed.
const maxCause = 20

// cause returns the end of a failed script of testscript, or the first failed assertion of testify in the output of a
// test, or else its first message.
func cause(lines []string) []string {
	script := func(line string) bool { return strings.HasPrefix(strings.TrimSpace(line), "FAIL: ") }
	if i := slices.IndexFunc(lines, script); i >= 0 {
		return lines[max(0, i+1-maxCause) : i+1]
	}
	var first, message []string
	add := func() []string {
		if first == nil {
			first = message
		}
		if slices.ContainsFunc(message, func(line string) bool { return strings.Contains(line, "Error Trace:") }) {
			return message
		}
		return nil
	}
	for _, line := range lines {
		switch {
		case logged.MatchString(line):
			if found := add(); found != nil {
				return found
			}
			message = []string{line}
		case len(message) > 0 && len(message) < maxCause && !strings.HasPrefix(strings.TrimSpace(line), "--- "):
			message = append(message, line)
		}
	}
	if found := add(); found != nil {
		return found
	}
	return first
}

// reason returns what the test gave to t.Skip, on one line.
func reason(lines []string) string {
	var words []string
	for _, line := range lines {
		if strings.HasPrefix(strings.TrimSpace(line), "--- SKIP") {
			continue
		}
		words = append(words, strings.Fields(logged.ReplaceAllString(line, ""))...)
	}
	if len(words) == 0 {
		return "no reason given"
	}
	return strings.Join(words, " ")
}
