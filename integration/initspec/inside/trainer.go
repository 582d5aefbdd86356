package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
)

// trainer saves its work on SIGTERM, for which it needs its two workers, like a data loader. It prints saved if both
// still answer then, and lost otherwise.
func trainer() error {
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM)
	var ask []func() bool
	for range 2 {
		worker := exec.Command("/bin/inside", "worker")
		in, err := worker.StdinPipe()
		if err != nil {
			return err
		}
		out, err := worker.StdoutPipe()
		if err != nil {
			return err
		}
		if err := worker.Start(); err != nil {
			return err
		}
		answers := bufio.NewReader(out)
		ask = append(ask, func() bool {
			_, _ = fmt.Fprintln(in, "more") // fails if the worker has ended
			answer, err := answers.ReadString('\n')
			return err == nil && strings.TrimSpace(answer) == "data"
		})
		if !ask[len(ask)-1]() {
			return fmt.Errorf("a worker does not answer")
		}
	}
	if _, err := fmt.Fprintln(os.Stdout, "ready"); err != nil {
		return err
	}
	<-told
	result := "saved"
	for range 100 { // repeat, so that a signal to the workers has time to end them
		for _, more := range ask {
			if !more() {
				result = "lost"
			}
		}
	}
	_, err := fmt.Fprintln(os.Stdout, result)
	return err
}

// worker answers each line with data.
func worker() error {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if _, err := fmt.Fprintln(os.Stdout, "data"); err != nil {
			return err
		}
	}
	return lines.Err()
}
