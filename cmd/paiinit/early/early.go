// Package early does two things before the rest of the program is initialised: it makes the usual call of the remote
// shell, which is made often, and is the first process of a container, for which all others wait.
//
// A launcher starts `paiinit rsh HOST COMMAND` once for each host, and such a process has little to do: it hands its
// standard files and the command to the paiinit of its container, forwards signals, and returns the status. Nine tenths
// of what is initialised before main, 0.9 of its 2.5 ms of processor time and 155 of its 460 page faults, belong to
// packages that it does not use: the imports of memberlist, ssh, dns (measured with GODEBUG=inittrace=1 and
// getrusage(2) on the two processors of a virtual machine). Go initialises packages as soon as their imports are, in
// the order of their paths (The Go Programming Language Specification, Program initialization), so that this one, which
// imports little, comes before them. It is the only package here with an init function.
//
// Of the remote shell, it takes a plain host and command, without a terminal, where PAIINIT_AGENT names the socket of a
// paiinit that is an ancestor of this process. Everything else is left to main, before anything was sent: options,
// terminals, an agent that cannot be reached, or that is another rank's, because a launcher has forwarded the variable
// (mpirun -x). The protocol and what a signal means are those of package rsh, which has the other end and the long way
// (package rsh/frame has what both write alike); that both are the same is tested with a real job.
//
// The first process of a container only starts the agent, hands signals on and reaps (package pid1). Where the command
// line is certain to be that of a launch, it does so here: the agent starts earlier, and PID 1 takes less memory.
package early

import (
	"errors"
	"os"
	"os/signal"
	"syscall"
	"time"
	"unsafe"

	"github.com/paiinit/paiinit/internal/proc"
	"github.com/paiinit/paiinit/pid1"
	"github.com/paiinit/paiinit/rsh/frame"
)

func init() {
	if c, ok := usual(os.Args); ok && c.ask() {
		c.wait()
	}
	if environ := os.Environ(); launches(os.Args, environ) {
		// Init functions run locked to the main thread: every wait in one would be two switches of threads.
		status := make(chan int)
		go func() { status <- pid1.Main(Container(os.Args, environ), nil) }() // no agent: this is the first process
		os.Exit(<-status)
	}
}

// Container is what a container's two processes were started with.
func Container(args, environ []string) pid1.Config {
	return pid1.Config{Args: args, Environ: environ, Secrets: []string{SecretVariable}, Stderr: os.Stderr}
}

// SecretVariable may have the job's secret.
const SecretVariable = "PAIINIT_SECRET"

// Answer is what the agent of this container has answered to the command of this process, if it was asked and has not
// answered with a status; or else nil.
func Answer() *os.File { return answer }

var answer *os.File // written by init only

// call is a command on another host.
type call struct {
	socket  string
	request []byte
	parent  int
	conn    int
}

// usual reads the command line.
func usual(args []string) (*call, bool) {
	words := args[min(len(args), 1):]
	if name := base(args); name != "ssh" && name != "rsh" {
		if len(words) == 0 || words[0] != "rsh" {
			return nil, false
		}
		words = words[1:]
	}
	if len(words) > 0 && words[0] == "-x" { // MPICH hydra's way to call an ssh
		words = words[1:]
	}
	socket := os.Getenv("PAIINIT_AGENT")
	if socket == "" || len(words) < 2 || !plain(words[0]) || words[1] == "" || words[1][0] == '-' || isTerminal(0) {
		return nil, false
	}
	content := []byte(frame.Protocol + "\x00" + words[0] + "\x00\x00\x00\x00" + words[1])
	for _, w := range words[2:] {
		content = append(append(content, ' '), w...)
	}
	n := len(content)
	if n > 64<<10 {
		return nil, false
	}
	return &call{socket: socket, request: append(frame.Header(frame.Request, n), content...)}, true
}

func base(args []string) string {
	if len(args) == 0 {
		return ""
	}
	name := args[0]
	for i := len(name) - 1; i >= 0; i-- {
		if name[i] == '/' {
			return name[i+1:]
		}
	}
	return name
}

// plain says that a word is nothing but a host: no option, no user, no port.
func plain(word string) bool {
	for i := range len(word) {
		c := word[i]
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_'
		if !letter && (i == 0 || c != '-' && c != '.') {
			return false
		}
	}
	return word != ""
}

func isTerminal(fd int) bool {
	var settings [256]byte // more than a struct termios has
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), syscall.TCGETS, uintptr(unsafe.Pointer(&settings)))
	return errno == 0
}

// ask hands the command over; false: nobody has it.
func (c *call) ask() bool {
	c.parent = os.Getppid()
	// Nonblocking, as the queue of the socket may be full: main has more patience.
	conn, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return false
	}
	if syscall.Connect(conn, &syscall.SockaddrUnix{Name: c.socket}) != nil ||
		syscall.SetNonblock(conn, false) != nil || !c.descends(conn) {
		_ = syscall.Close(conn)
		return false
	}
	files := syscall.UnixRights(0, 1, 2)
	for sent := 0; sent < len(c.request); files = nil {
		n, err := syscall.SendmsgN(conn, c.request[sent:], files, nil, syscall.MSG_NOSIGNAL)
		if err != nil {
			_ = syscall.Close(conn)
			return false
		}
		sent += n
	}
	c.conn = conn
	return true
}

// descends reports whether the agent at the other end is an ancestor of this process. Another user's process is left to
// main, which says so: it may have the name of paiinit, and any parent.
func (c *call) descends(conn int) bool {
	agent, err := syscall.GetsockoptUcred(conn, syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	if err != nil || agent.Pid <= 0 {
		return false
	}
	if own := syscall.Geteuid(); agent.Uid != 0 && int(agent.Uid) != own && own != 0 {
		return false
	}
	return proc.Generations(os.DirFS("/proc"), c.parent, int(agent.Pid)) >= 0
}

// wait ends the process with the status of the command, or leaves what came in its place to main.
func (c *call) wait() {
	go c.forward()
	_, _, _ = syscall.RawSyscall6(syscall.SYS_PRCTL, syscall.PR_SET_PDEATHSIG, uintptr(syscall.SIGPWR), 0, 0, 0, 0)
	c.orphaned()

	for {
		var b [frame.HeaderSize + 1]byte // of a status: the header, itself
		switch n, _, err := syscall.Recvfrom(c.conn, b[:], syscall.MSG_PEEK); {
		case errors.Is(err, syscall.EINTR):
			continue
		case n == len(b) && string(b[:frame.HeaderSize]) == string(frame.Header(frame.Exit, 1)):
			os.Exit(int(b[frame.HeaderSize]))
		case n == len(b) && string(b[:frame.HeaderSize]) == string(frame.Header(frame.Killed, 1)):
			os.Exit(min(128+int(b[frame.HeaderSize]), 255))
		}
		answer = os.NewFile(uintptr(c.conn), c.socket)
		return
	}
}

// forward passes signals on, until the process ends.
//
// It begins when the command is under way, and beside the wait: to catch signals takes 0.6 ms of processor time, most of it for handing over from
// thread to thread. A signal that asks to end and comes earlier ends this process, and with it the command; others are lost.
func (c *call) forward() {
	caught := make(chan os.Signal, 16)
	signal.Notify(caught, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGPWR)
	c.orphaned()    // the word of it may have been one of those
	ending := false // the command was asked to end
	for sig := range caught {
		n := sig.(syscall.Signal)
		switch n {
		case syscall.SIGPWR:
			c.orphaned()
			continue
		case syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT:
			if ending {
				os.Exit(128 + int(n))
			}
			ending = true
			time.AfterFunc(frame.AgentTimeout, func() {
				if c.isUnread() {
					os.Exit(128 + int(n))
				}
			})
		}
		told := append(frame.Header(frame.Signal, 1), byte(n))
		_ = syscall.Sendto(c.conn, told, syscall.MSG_NOSIGNAL|syscall.MSG_DONTWAIT, nil)
	}
}

// isUnread reports whether the agent, which may be stopped, has not read all that was sent to it.
func (c *call) isUnread() bool {
	var left int32
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(c.conn), syscall.TIOCOUTQ, uintptr(unsafe.Pointer(&left)))
	return errno == 0 && left > 0
}

// orphaned ends the process, and so the command, if its parent has died.
func (c *call) orphaned() {
	if os.Getppid() != c.parent {
		os.Exit(128 + int(syscall.SIGHUP))
	}
}
