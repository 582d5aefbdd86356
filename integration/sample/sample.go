// Package sample shortens the runs of packages whose tests need seconds each. It chooses a part of the tests, of which
// every one is as good as another: runs that choose at random have run all tests before long. It also lets more of them
// wait at the same time.
package sample

import (
	"crypto/sha256"
	"encoding/binary"
	"flag"
	"os"
	"runtime"
	"strconv"
)

// Variable names a sample: any text, of which the choice follows. If it is empty or unset, all tests run.
const Variable = "PAIINIT_TEST_SAMPLE"

// Reason begins the reason with which tests that do not belong to the sample are skipped. tools/testreport knows it.
const Reason = "not in the sample "

// Test is a *testing.T, or a test of a library with another name.
type Test interface {
	Name() string
	Skip(args ...any)
}

// OneIn skips the test if it does not belong to the sample. One in n tests does.
func OneIn(t Test, n uint64) {
	if name := os.Getenv(Variable); name != "" && !has(name, t.Name(), n) {
		t.Skip(Reason + name)
	}
}

func has(sample, test string, n uint64) bool {
	h := sha256.Sum256([]byte(sample + "\x00" + test))
	return binary.BigEndian.Uint64(h[:])%n == 0
}

// WaitTogether runs twice as many tests at the same time as there are processors, unless -test.parallel is given: most
// of them wait for time limits and other processes. TestMain calls it before m.Run.
func WaitTogether() error {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if given {
		return nil
	}
	return flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0)))
}
