package pid1

import (
	"errors"
	"io"
	"os"
	"path"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/paiinit/paiinit/internal/proc"
)

// second implements Main in the agent.
func second(h handover, environ, names []string, agent func(Agent) int) int {
	var caught, faulty sync.WaitGroup
	defer faulty.Wait()
	caught.Go(func() { // in parallel: each signal costs two thread switches
		notify(make(chan os.Signal, 1), deadly) // never read: only signals from the first process count
	})

	if traceback, _ := take(environ, "GOTRACEBACK"); traceback == nil {
		faulty.Go(func() { notify(make(chan os.Signal, 1), faults) }) // the agent starts before these are caught
	}
	for _, fd := range h.files() {
		syscall.CloseOnExec(fd)
	}
	// The kernel named the process "exe", after /proc/self/exe. ps and pgrep should find it by its own name.
	_ = os.WriteFile("/proc/self/comm", []byte(path.Base(os.Args[0])), 0)
	hide() // before it reads a secret, but after it wrote comm: hide makes root the owner of that file

	secrets := make(map[string][]byte)
	for i, name := range names {
		if h.secrets[i] < 0 {
			continue
		}
		secret, err := readAll(h.secrets[i])
		if err != nil {
			caught.Wait()
			say("reading the secret " + name + " from the first process: " + err.Error())
			return StatusCrash // without passing it on: the first process reports that the agent failed
		}
		secrets[name] = secret
	}

	pipe := os.NewFile(uintptr(h.signals), "signals")
	var first [1]byte
	_, _ = pipe.Read(first[:]) // ready, or the first process has ended, which receive notices
	signals := make(chan os.Signal)
	stop := make(chan struct{})
	var receiver sync.WaitGroup
	receiver.Go(func() { receive(pipe, signals, stop, h.init) })
	settled := make(chan struct{}, 1)
	delay := func() time.Duration { return proc.RunDelay(proc.System{}) }
	receiver.Go(func() { shedWhenIdle(settled, stop, delay, shed) })
	settle := func() {
		_ = syscall.Chdir("/") // a failure is harmless
		select {
		case settled <- struct{}{}:
		default:
		}
	}

	fork := func(start func() error) error { return withSlack(h.slack, start) }
	caught.Wait()
	status := agent(Agent{
		Environ: environ, Secrets: secrets, Signals: signals, StartWithSlack: fork, Settle: settle, Init: h.init,
	})

	close(stop)
	_ = pipe.Close() // ends a blocked read; its error does not matter
	receiver.Wait()

	if status < 0 || status > 255 {
		say("the agent returned " + strconv.Itoa(status) + ", which is not an exit status")
		status = StatusCrash
	}
	// It fails only if the first process has ended.
	_, _ = syscall.Write(h.status, []byte{byte(status)})
	return status
}

// shedWhenIdle sheds when the agent has waited for the other ranks for a while, and a moment after settled. While the
// agent waits for processors (delay) it is not idle: it would only load the same pages again.
func shedWhenIdle(settled, stop <-chan struct{}, delay func() time.Duration, shed func()) {
	idle := time.NewTimer(waitingShedAfter)
	defer idle.Stop()
	before, tries := time.Duration(0), 0
	for {
		select {
		case <-idle.C:
			now := delay()
			if now-before > shedLate && tries < shedTries {
				before, tries = now, tries+1
				idle.Reset(waitingShedAfter)
				continue
			}
			shed()
		case <-settled:
			before, tries = delay(), 0
			idle.Reset(agentShedAfter)
		case <-stop:
			return
		}
	}
}

// receive passes on the signals that come through the pipe, until stop and the pipe are closed. When the first process
// has ended, it adds a SIGTERM, but not if that was PID 1: then the kernel kills everything, and the agent would use
// its last moment to tell other ranks that it was asked to stop.
func receive(pipe io.Reader, signals chan<- os.Signal, stop <-chan struct{}, init bool) {
	pass := func(n byte) bool {
		select {
		case signals <- syscall.Signal(n):
			return true
		case <-stop:
			return false
		}
	}
	buf := make([]byte, 64)
	for {
		n, err := pipe.Read(buf)
		for _, b := range buf[:n] {
			if !pass(b) {
				return
			}
		}
		if err != nil { // the first process has ended, or stop is closed
			if !init {
				pass(byte(syscall.SIGTERM))
			}
			return
		}
	}
}

// readAll reads a secret from a pipe and closes it.
func readAll(fd int) ([]byte, error) {
	pipe := os.NewFile(uintptr(fd), "secret")
	defer func() { _ = pipe.Close() }()
	data := make([]byte, MaxSecret) // io.ReadAll would leave copies of the secret in memory
	n, err := io.ReadFull(pipe, data)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return nil, errors.New("reading file descriptor " + strconv.Itoa(fd) + ": " + err.Error())
	}
	return data[:n], nil
}
