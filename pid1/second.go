package pid1

import (
	"io"
	"os"
	"strconv"
	"sync"
	"syscall"
)

// second is Main in the agent.
func second(cfg Config, h handover, agent func(Agent) int) int {
	var caught, faulty sync.WaitGroup
	defer faulty.Wait()
	caught.Go(func() { // beside the rest: each signal takes two switches of threads
		notify(make(chan os.Signal, 1), deadly) // nobody reads it: what the first process hands on is the truth
	})

	faulty.Go(func() { notify(make(chan os.Signal, 1), faults) }) // the start does not wait for these
	for _, fd := range append([]int{h.signals, h.status}, h.secrets...) {
		if fd >= 0 {
			syscall.CloseOnExec(fd)
		}
	}
	// The kernel has named the process "exe" after /proc/self/exe; ps and pgrep should find it.
	words := split(cfg.Args[0], '/')
	_ = os.WriteFile("/proc/self/comm", []byte(words[len(words)-1]), 0)
	hide() // before there is a secret; after the name, which only the file's owner may write

	secrets := make(map[string][]byte)
	for i, name := range cfg.Secrets {
		if h.secrets[i] < 0 {
			continue
		}
		secret, err := readAll(h.secrets[i])
		if err != nil {
			caught.Wait()
			say(cfg.Stderr, "reading the secret "+name+" from the first process: "+err.Error())
			return StatusCrash // not handed over: the first process says that the agent failed
		}
		secrets[name] = secret
	}

	pipe := os.NewFile(uintptr(h.signals), "signals")
	var first [1]byte
	_, _ = pipe.Read(first[:]) // ready, or the end of the first process, which receive is going to see
	signals := make(chan os.Signal)
	stop := make(chan struct{})
	var receiver sync.WaitGroup
	receiver.Go(func() { receive(pipe, signals, stop, h.init) })

	fork := func(start func() error) (err error) {
		if h.slack < 0 {
			return start()
		}
		withSlack(h.slack, func() { err = start() })
		return err
	}
	caught.Wait()
	status := agent(Agent{Environ: cfg.Environ, Secrets: secrets, Signals: signals, Fork: fork, Init: h.init})

	close(stop)
	_ = pipe.Close() // ends a blocked read; there is nothing else to tell
	receiver.Wait()

	if status < 0 || status > 255 {
		say(cfg.Stderr, "the agent returned "+strconv.Itoa(status)+", which is no exit status")
		status = StatusCrash
	}
	// There is nobody left to tell if this fails: the first process is gone.
	_, _ = syscall.Write(h.status, []byte{byte(status)})
	return status
}

// receive passes on the signals that come through the pipe, until stop is closed and the pipe as well. When the first process
// is gone, that is a last SIGTERM; but not when it was PID 1, since then the kernel kills everything that is left, and the
// agent would use its last moment to tell others that it was asked to stop.
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
		if err != nil { // the first process is gone, or stop is closed
			if !init {
				pass(byte(syscall.SIGTERM))
			}
			return
		}
	}
}

// readAll reads a secret from a pipe to its end, and closes it.
func readAll(fd int) ([]byte, error) {
	pipe := os.NewFile(uintptr(fd), "secret")
	defer func() { _ = pipe.Close() }()
	data := make([]byte, MaxSecret) // io.ReadAll would leave copies of a secret behind as it grows
	n := 0
	for n < len(data) {
		more, err := pipe.Read(data[n:])
		if n += more; err == io.EOF {
			break
		}
		if err != nil {
			return nil, because("reading file descriptor "+strconv.Itoa(fd), err)
		}
	}
	return data[:n], nil
}
