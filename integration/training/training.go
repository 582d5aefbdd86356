// Package training checks the log of a training loop that resumes from checkpoints and runs under paiinit's restarts.
//
// All processes of all generations append to one file, each line by one write, so that its lines are in the order in
// which they were written:
//
//	begin LAUNCH GENERATION RANK CHECKPOINT   the process has started, and resumes from there
//	old LAUNCH GENERATION RANK COUNT          COUNT processes of earlier launches still run
//	step LAUNCH GENERATION RANK STEP          it begins a step
//	checkpoint LAUNCH GENERATION RANK STEP    the checkpoint of a step is complete
//	done LAUNCH GENERATION RANK STEP          it has completed its last step
//
// LAUNCH is the same in all processes of one launch, and in no other: MASTER_PORT.
package training

import (
	"errors"
	"fmt"
	"strings"
)

// Launch is one launch of the job.
type Launch struct {
	ID         string
	Generation int
	Resumed    int         // the checkpoint from which it went on
	Steps      map[int]int // the last step by rank; that of the checkpoint before the first step
	Done       map[int]bool
}

// Log is what a log says.
type Log struct {
	Launches   []Launch
	Checkpoint int // the last one
}

// Last returns the last launch; without any, an empty one.
func (l Log) Last() Launch {
	if len(l.Launches) == 0 {
		return Launch{}
	}
	return l.Launches[len(l.Launches)-1]
}

// Complete reports whether all ranks of the last launch have completed their last step.
func (l Log) Complete(ranks int) bool { return len(l.Last().Done) == ranks }

// Slowest returns the last step that all ranks of the last launch have begun; 0 if not all of them run.
func (l Log) Slowest(ranks int) int {
	last := l.Last()
	if len(last.Steps) != ranks {
		return 0
	}
	slowest := -1
	for _, step := range last.Steps {
		if slowest < 0 || step < slowest {
			slowest = step
		}
	}
	return slowest
}

// Trains reports whether all ranks have begun to train since an earlier moment, in a new launch or beyond the step of
// that moment.
func (l Log) Trains(since Log, ranks int) bool {
	last := l.Last()
	from := last.Resumed
	if before := since.Last(); len(since.Launches) > 0 && last.ID == before.ID {
		for _, step := range before.Steps {
			from = max(from, step)
		}
	}
	const more = 5 // a process that was just killed cannot take part in so many
	return l.Slowest(ranks) >= from+more
}

// Read returns what a log says, and an error for each line that shows a mistake: a launch that begins twice on a rank,
// goes on beside a later one, finds processes of an earlier one, or loses or repeats a step beyond its checkpoint.
// Generations grow, unless the whole job begins anew with generation 1. A generation that is lost before its processes
// have begun leaves no line.
func Read(text string) (Log, error) {
	var log Log
	var errs []error
	for line := range strings.Lines(text) {
		if !strings.HasSuffix(line, "\n") {
			break // the end of a file that is still written
		}
		if err := log.add(line); err != nil {
			errs = append(errs, fmt.Errorf("%q: %w", strings.TrimSpace(line), err))
		}
	}
	return log, errors.Join(errs...)
}

func (l *Log) add(line string) error {
	var what, id string
	var generation, rank, n int
	if _, err := fmt.Sscan(line, &what, &id, &generation, &rank, &n); err != nil {
		return err
	}
	last := l.Last()
	if what == "begin" && (len(l.Launches) == 0 || last.ID != id || last.Generation != generation) {
		for _, earlier := range l.Launches {
			if earlier.ID == id && earlier.Generation == generation {
				return errors.New("a later launch has begun")
			}
		}
		l.Launches = append(l.Launches, Launch{
			ID: id, Generation: generation, Resumed: n, Steps: map[int]int{rank: n}, Done: map[int]bool{},
		})
		return errors.Join(l.resume(n), next(last.Generation, generation))
	}
	if last.ID != id || last.Generation != generation {
		return errors.New("it is not of the last launch")
	}
	step, begun := last.Steps[rank]
	if begun == (what == "begin") {
		return errors.New("the rank begins twice, or goes on without a beginning")
	}
	switch what {
	case "begin":
		last.Steps[rank] = n
		if n != last.Resumed {
			return fmt.Errorf("another rank resumed from %d", last.Resumed)
		}
	case "old":
		if n != 0 {
			return errors.New("processes of earlier launches are alive")
		}
	case "step":
		last.Steps[rank] = n
		if n != step+1 {
			return fmt.Errorf("the step before was %d", step)
		}
	case "checkpoint":
		before := l.Checkpoint
		l.Checkpoint = n
		if n <= before {
			return fmt.Errorf("the checkpoint before was %d", before)
		}
	case "done":
		last.Done[rank] = true
		if n != step {
			return fmt.Errorf("the last step was %d", step)
		}
	default:
		return errors.New("unknown line")
	}
	return nil
}

// resume checks the checkpoint from which a launch resumes. The process that wrote it may have died before it logged
// that.
func (l *Log) resume(n int) error {
	before := l.Checkpoint
	l.Checkpoint = n
	if n < before {
		return fmt.Errorf("the last checkpoint was %d", before)
	}
	return nil
}

func next(before, generation int) error {
	if generation <= before && generation != 1 {
		return fmt.Errorf("the generation before was %d", before)
	}
	return nil
}
