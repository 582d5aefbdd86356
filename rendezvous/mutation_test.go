package rendezvous

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// mutation is one way to break the protocol, which a test must notice: lines of a file, and their replacement.
type mutation struct {
	name, file string
	old, new   []string
}

// TestMutations checks that each mutation of testdata/mutations still fits the code. With PAIINIT_TEST_MUTATE=PART it
// also applies those with PART in their name, "." being all, one at a time, and requires a red test for each: that is
// "make mutate".
func TestMutations(t *testing.T) {
	which := os.Getenv("PAIINIT_TEST_MUTATE")
	for _, m := range readMutations(t) {
		t.Run(m.name, func(t *testing.T) {
			source, err := os.ReadFile(m.file)
			require.NoError(t, err)
			mutated, err := m.apply(string(source))
			require.NoError(t, err)
			if which == "" || which != "." && !strings.Contains(m.name, which) {
				return
			}
			t.Logf("red: %s", m.red(t, mutated))
		})
	}
}

func readMutations(t *testing.T) (all []mutation) {
	b, err := os.ReadFile("testdata/mutations")
	require.NoError(t, err)
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSuffix(line, "\n")
		mark, rest, _ := strings.Cut(line, " ")
		switch mark {
		case "", "#":
			continue
		case "mutation":
			all = append(all, mutation{name: rest})
			continue
		}
		require.NotEmpty(t, all, "%q stands before the first mutation", line)
		m := &all[len(all)-1]
		switch mark {
		case "file":
			m.file = rest
		case "-":
			m.old = append(m.old, strings.TrimSpace(rest))
		case "+":
			m.new = append(m.new, strings.TrimSpace(rest))
		default:
			t.Fatalf("%q is none of #, mutation, file, - and +", line)
		}
	}
	return all
}

// apply replaces the only place whose lines equal old, however they are indented.
func (m *mutation) apply(source string) (string, error) {
	lines := strings.Split(source, "\n")
	at := -1
	for i := range lines {
		j := 0
		for j < len(m.old) && i+j < len(lines) && strings.TrimSpace(lines[i+j]) == m.old[j] {
			j++
		}
		switch {
		case j < len(m.old) || j == 0:
		case at >= 0:
			return "", fmt.Errorf("%q: lines %d and %d of %s both read like it: say more", m.name, at+1, i+1, m.file)
		default:
			at = i
		}
	}
	if at < 0 {
		return "", fmt.Errorf("%q: %s has no such lines any more: write the mutation anew\n%s", m.name, m.file,
			strings.Join(m.old, "\n"))
	}
	out := append(append(append([]string{}, lines[:at]...), m.new...), lines[at+len(m.old):]...)
	return strings.Join(out, "\n"), nil
}

// red compiles the package with the mutated file, runs its tests of the protocol, and returns the message of the first
// one that failed.
func (m *mutation) red(t *testing.T, mutated string) string {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	dir := t.TempDir()
	real, err := filepath.Abs(m.file)
	require.NoError(t, err)
	fake := filepath.Join(dir, m.file)
	require.NoError(t, os.WriteFile(fake, []byte(mutated), 0o600))
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{real: fake}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "overlay"), overlay, 0o600))
	tests := filepath.Join(dir, "tests")
	out, err := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-overlay", filepath.Join(dir, "overlay"),
		"-o", tests, ".").CombinedOutput()
	require.NoError(t, err, "the mutation does not compile: %s", out)
	for _, some := range []string{
		"-test.skip=^(TestFaults|TestMutations|TestScale|" + realSockets + ")$", // those say most clearly what is wrong
		"-test.run=^TestFaults$",
	} {
		cmd := exec.CommandContext(ctx, tests, "-test.failfast", "-test.timeout=2m", some)
		cmd.Env = append(os.Environ(), "PAIINIT_TEST_MUTATE=")
		if out, err = cmd.CombinedOutput(); err != nil {
			require.NotContains(t, string(out), "test timed out", "no test noticed it: one only hangs")
			return firstFailure(out)
		}
	}
	require.Fail(t, "no test noticed it")
	return ""
}

// realSockets are the tests whose outcome may depend on the load of the machine: they must not be what makes a mutation
// red.
const realSockets = "TestGossip.*|TestUnknownRanksAreAgreed|TestSeeds.*|TestWithoutUDP|TestTaken.*|TestPort.*|" +
	"TestOtherKey.*|TestRestricted.*|TestMany.*|TestTheFirstByte.*|TestAnUnfitRankOfAnAgreed.*|TestFlood.*|" +
	"TestAlone.*|FuzzFirstBytes"

var plainFailure = regexp.MustCompile(`^\S*_test\.go:\d+: \S`) // and not the place of an assertion

// firstFailure returns the line that says what was wrong.
func firstFailure(out []byte) string {
	lines := bytes.Split(out, []byte("\n"))
	test := ""
	for i, l := range lines {
		s := strings.TrimSpace(string(l))
		switch {
		case strings.HasPrefix(s, "--- FAIL"):
			test = s + " "
		case strings.HasPrefix(s, "panic:"), strings.HasPrefix(s, "fatal error:"), strings.Contains(s, "_test.go:") &&
			strings.Contains(s, "seed "):
			return test + s
		case strings.HasPrefix(s, "Error:"):
			for _, next := range lines[i+1 : min(len(lines), i+4)] {
				s += " " + strings.TrimSpace(string(next))
			}
			return test + s
		case plainFailure.MatchString(s):
			return test + s
		}
	}
	return test
}
