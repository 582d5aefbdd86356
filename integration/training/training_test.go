package training_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/integration/training"
)

func TestRead(t *testing.T) {
	const first = "begin a 1 0 0;begin a 1 1 0;old a 1 0 0;step a 1 0 1;step a 1 1 1;checkpoint a 1 0 1;"
	const second = "begin b 2 1 1;begin b 2 0 1;step b 2 0 2;"
	for name, tt := range map[string]struct{ log, says string }{
		"empty":                        {"", ""},
		"one launch":                   {first, ""},
		"two launches":                 {first + second + "step b 2 1 2;done b 2 1 2;", ""},
		"not logged":                   {first + "step a 1 0 2;begin b 2 0 2;", ""},
		"not begun":                    {first + "begin c 3 0 1;", ""},
		"an earlier generation":        {first + second + "begin d 3 0 1;begin c 2 0 1;", "before was 3"},
		"the whole job":                {first + second + "begin c 1 0 1;", ""},
		"twice":                        {first + "begin a 1 1 0;", "begins twice"},
		"no beginning":                 {"begin a 1 0 0;step a 1 1 1;", "without a beginning"},
		"old one goes on":              {first + second + "step a 1 1 2;", "not of the last launch"},
		"old one begins":               {first + second + "begin a 1 2 0;", "a later launch has begun"},
		"old processes":                {first + "old a 1 1 2;", "alive"},
		"lost step":                    {first + "step a 1 1 3;", "the step before was 1"},
		"repeated step":                {first + "step a 1 1 1;", "the step before was 1"},
		"lost checkpoint":              {first + "begin b 2 0 0;", "the last checkpoint was 1"},
		"checkpoint written again":     {first + "checkpoint a 1 0 1;", "the checkpoint before was 1"},
		"ranks of several checkpoints": {first + second + "begin b 2 2 0;", "another rank resumed from 1"},
		"done too soon":                {first + "done a 1 0 2;", "the last step was 1"},
		"unknown":                      {first + "stop a 1 0 2;", "unknown line"},
		"not a line":                   {first + "step a 1;", "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := training.Read(strings.ReplaceAll(tt.log, ";", "\n"))
			if tt.says == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tt.says)
			}
		})
	}
	log, err := training.Read(strings.ReplaceAll(first+second+"done b 2 0 2;step b 2 1 2;step b 2", ";", "\n"))
	require.NoError(t, err)
	require.Equal(t, 2, log.Last().Generation)
	require.Equal(t, 1, log.Last().Resumed)
	require.Equal(t, 2, log.Slowest(2))
	require.Zero(t, log.Slowest(3))
	require.True(t, log.Complete(1))
	require.False(t, log.Complete(2))
	require.Zero(t, training.Log{}.Last())
}

func TestTrains(t *testing.T) {
	read := func(log string) training.Log {
		l, err := training.Read(strings.ReplaceAll(log, ";", "\n"))
		require.NoError(t, err)
		return l
	}
	const begin = "begin a 1 0 0;begin a 1 1 0;"
	steps := func(from, to int, launch string) (log string) {
		for step := from; step <= to; step++ {
			log += fmt.Sprintf("step %[1]s 0 %[2]d;step %[1]s 1 %[2]d;", launch, step)
		}
		return log
	}
	since := read(begin + steps(1, 3, "a 1"))
	require.False(t, since.Trains(since, 2))
	require.False(t, read(begin+steps(1, 7, "a 1")).Trains(since, 2))
	require.True(t, read(begin+steps(1, 8, "a 1")).Trains(since, 2))
	require.False(t, read(begin+steps(1, 8, "a 1")).Trains(since, 3), "a rank is missing")
	again := begin + steps(1, 3, "a 1") + "begin b 2 0 0;begin b 2 1 0;"
	require.False(t, read(again+steps(1, 4, "b 2")).Trains(since, 2))
	require.True(t, read(again+steps(1, 5, "b 2")).Trains(since, 2))
	require.False(t, read("").Trains(read(""), 2))
	require.True(t, read(begin+steps(1, 5, "a 1")).Trains(read(""), 2))
}
