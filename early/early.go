// Package early does two things before the rest of the program is initialised: it handles the usual call of the remote
// shell, which is frequent, and it runs the first process of a container, for which all others wait.
//
// A launcher starts `paiinit rsh HOST COMMAND` once for each host. Such a process has little to do: it sends its
// standard files and the command to the paiinit of its container, forwards signals, and returns the exit status.
// Initialising the packages that it does not use, the imports of memberlist, ssh and dns, would take a third of its
// processor time and page faults (GODEBUG=inittrace=1 and getrusage(2) show them). Go initialises a package as soon as
// its imports are initialised, in the order of their paths (The Go Programming Language Specification, Program
// initialization). This package imports little, so it comes before them. It is the only package here with an init
// function.
//
// As remote shell, it handles a plain host and command, without a terminal, if PAIINIT_AGENT names the socket of a
// paiinit that is an ancestor of this process. It leaves all other calls to main before it sends anything: options,
// terminals, an agent that cannot be reached, and an agent of another rank, whose variable a launcher has forwarded
// (mpirun -x). The protocol and the meaning of signals are those of package rsh, which has the server and the full
// client. Both clients share the constants of package rsh/frame. A test with a real job checks that both behave alike.
//
// The first process of a container only starts the agent, forwards signals and reaps (package pid1). If the command
// line certainly starts a launch, this package does that: the agent starts earlier, and PID 1 takes less memory.
package early

import (
	"errors"
	"os"
	"os/signal"
	"path"
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
		// Init functions are locked to the main thread, so every wait in one would cost two thread switches.
		status := make(chan int)
		// There is no agent function, because this is the first process.
		go func() { status <- pid1.Main(environ, []string{SecretVariable}, nil) }()
		os.Exit(<-status)
	}
}

// SecretVariable is the variable that may have the job's secret.
const SecretVariable = "PAIINIT_SECRET"

// Answer returns the connection to the agent if this package has sent the command and the answer is not a status, or
// nil.
func Answer() *os.File { return answer }

var answer *os.File // written by init only

// call is a command on another host.
type call struct {
	socket  string
	request []byte
	parent  int
	conn    int
}

// usual returns the call if this package handles the command line.
func usual(args []string) (*call, bool) {
	words := args[min(len(args), 1):]
	if name := base(args); name != "ssh" && name != "rsh" {
		if len(words) == 0 || words[0] != "rsh" {
			return nil, false
		}
		words = words[1:]
	}
	if len(words) > 0 && words[0] == "-x" { // MPICH's hydra calls ssh with -x
		words = words[1:]
	}
	socket := os.Getenv("PAIINIT_AGENT")
	if socket == "" || len(words) < 2 || !plain(words[0]) || words[1] == "" || words[1][0] == '-' || IsTerminal(0) {
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
	return path.Base(args[0])
}

// plain reports whether a word is only a host, without option, user or port.
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

// IsTerminal reports whether a file is a terminal.
func IsTerminal(fd int) bool {
	var settings [256]byte // larger than a struct termios
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), syscall.TCGETS, uintptr(unsafe.Pointer(&settings)))
	return errno == 0
}

// ask sends the command to the agent. It returns false if the agent did not get it.
func (c *call) ask() bool {
	c.parent = os.Getppid()
	// The socket is non-blocking, because its queue may be full: then main retries.
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

// descends reports whether the agent at the other end is an ancestor of this process. It returns false for another
// user's process, which could have the name of paiinit and any parent; main reports that.
func (c *call) descends(conn int) bool {
	agent, err := syscall.GetsockoptUcred(conn, syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	if err != nil || agent.Pid <= 0 {
		return false
	}
	if own := syscall.Geteuid(); agent.Uid != 0 && int(agent.Uid) != own && own != 0 {
		return false
	}
	return proc.Generations(proc.System{}, c.parent, int(agent.Pid)) >= 0
}

// wait ends the process with the exit status of the command. It returns, and sets answer, if the agent sent anything
// else.
func (c *call) wait() {
	go c.forward()
	_, _, _ = syscall.RawSyscall6(syscall.SYS_PRCTL, syscall.PR_SET_PDEATHSIG, uintptr(syscall.SIGPWR), 0, 0, 0, 0)
	c.orphaned()

	for {
		var b [frame.HeaderSize + 1]byte // the header and the status
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

// forward forwards signals until the process ends.
//
// It starts after the command is sent, and runs beside wait, because catching signals takes 0.6 ms of processor time,
// mostly for thread switches. An earlier signal that asks to end kills this process, and so the command; others are
// lost.
func (c *call) forward() {
	caught := make(chan os.Signal, 16)
	signal.Notify(caught, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT,
		syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGPWR)
	c.orphaned()    // an earlier SIGPWR may be lost
	ending := false // a signal has asked the command to end
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

// isUnread reports whether the agent has not read everything that was sent to it. It may be stopped.
func (c *call) isUnread() bool {
	var left int32
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(c.conn), syscall.TIOCOUTQ, uintptr(unsafe.Pointer(&left)))
	return errno == 0 && left > 0
}

// orphaned ends this process, and so the command, if its parent has died.
func (c *call) orphaned() {
	if os.Getppid() != c.parent {
		os.Exit(128 + int(syscall.SIGHUP))
	}
}
