package pid1_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/paiinit/paiinit/pid1"
	"golang.org/x/sys/unix"
)

var nowhere *int

// role is the agent function of all tests.
func role(a pid1.Agent) int {
	arg := func(i int) string { return os.Args[1+i] }
	number := func(i int) int {
		n, err := strconv.Atoi(arg(i))
		must(err)
		return n
	}
	switch arg(0) {
	case "status": // N: returns it
		return number(1)

	case "sh": // SCRIPT: runs it with standard input, output and error, and returns its status
		return shell(a, arg(1))

	case "exec": // PROGRAM...: runs it without a shell, which might change its signals
		return run(a, os.Args[2], os.Args[3:]...)

	case "signals": // prints ready and every signal, and returns 0 after SIGTERM
		fmt.Println("ready", os.Getpid(), a.Init)
		for sig := range a.Signals {
			fmt.Println(int(sig.(syscall.Signal)))
			if sig == unix.SIGTERM {
				return 0
			}
		}

	case "settle": // prints ready, settles after the first signal, and ends after the second one
		fmt.Println("ready")
		<-a.Signals
		a.Settle()
		a.Settle() // harmless
		<-a.Signals
		return 0
	case "slack": // prints its own timer slack and that of a program of the job
		own, err := os.ReadFile("/proc/self/timerslack_ns") // of the first thread
		must(err)
		fmt.Print(string(own))
		cmd := exec.Command("/bin/cat", "/proc/self/timerslack_ns")
		cmd.Stdout = os.Stdout
		must(a.StartWithSlack(cmd.Start))
		must(cmd.Wait())

	case "hold": // SCRIPT HOW: runs the script, prints ready, and ends after the first signal as HOW says
		status := shell(a, arg(1))
		fmt.Println("ready", status)
		<-a.Signals
		switch how := arg(2); how {
		case "panic":
			go panic("deliberately")
			select {}
		case "fault":
			go func() { fmt.Println(*nowhere) }()
			select {}
		case "kill":
			must(unix.Kill(os.Getpid(), unix.SIGKILL))
			select {}
		case "exit":
			os.Exit(3)
		default:
			return number(2)
		}

	case "kill": // dies at once, with SIGKILL
		must(unix.Kill(os.Getpid(), unix.SIGKILL))
		select {}

	case "commands": // N: runs N commands, 8 at a time, each of which leaves an orphan; prints wrong statuses
		var next, wrong atomic.Int64
		var workers sync.WaitGroup
		for range 8 {
			workers.Go(func() {
				for n := next.Add(1); n <= int64(number(1)); n = next.Add(1) {
					cmd := exec.Command("/bin/sh", "-c", fmt.Sprintf("(: &); exit %d", n%256))
					cmd.Env = a.Environ
					_ = cmd.Run()
					if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != int(n%256) {
						wrong.Add(1)
					}
				}
			})
		}
		workers.Wait()
		fmt.Println("wrong", wrong.Load())
		<-a.Signals

	case "agent": // prints its Agent, and waits for a signal while a command runs
		must(json.NewEncoder(os.Stdout).Encode(a.Secrets))
		must(json.NewEncoder(os.Stdout).Encode(a.Environ))
		cmd := exec.Command("/bin/sleep", "1000")
		cmd.Env = a.Environ
		must(cmd.Start())
		fmt.Println("ready")
		<-a.Signals

	case "standard": // returns 0 if the standard files are open
		for fd := range 3 {
			var st unix.Stat_t
			if unix.Fstat(fd, &st) != nil {
				return 1 + fd
			}
		}

	case "nested": // VALUE: runs another init with the whole environment of the process, or with that value instead.
		// Its agent dies, which only a first process survives.
		environ := os.Environ()
		if value := arg(1); value != "" {
			environ = append(a.Environ, "PAIINIT_PID1="+value)
		}
		cmd := exec.Command(binary(), "kill")
		cmd.Env, cmd.Stderr = environ, os.Stderr
		_ = cmd.Run()
		return cmd.ProcessState.ExitCode()

	default:
		panic("no such role: " + arg(0))
	}
	return 0
}

func shell(a pid1.Agent, script string) int {
	return run(a, "/bin/sh", "-c", script)
}

// run returns a status as a shell does.
func run(a pid1.Agent, program string, args ...string) int {
	cmd := exec.Command(program, args...)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = a.Environ, os.Stdin, os.Stdout, os.Stderr
	_ = cmd.Run()
	if cmd.ProcessState == nil {
		return 127
	}
	if how := cmd.ProcessState.Sys().(syscall.WaitStatus); how.Signaled() {
		return 128 + int(how.Signal())
	}
	return cmd.ProcessState.ExitCode()
}
