package pid1

import "strconv"

// Variable tells the second process that it is the second process. It holds no secret, only numbers, and is removed
// from Agent.Environ.
const Variable = "PAIINIT_PID1"

// ready is the first byte of handover.signals: the first process catches all signals now.
const ready = 0

// handover is what the first process tells the agent. The file descriptors are the agent's.
type handover struct {
	parent  int   // process id of the first process: in any other child the variable is a leftover
	init    bool  // Agent.Init
	signals int   // read end: ready, and then one byte, a signal number, for each forwarded signal
	status  int   // write end: one byte, the agent's status
	slack   int   // the timer slack of the job's processes, in nanoseconds; -1 if the kernel does not say
	secrets []int // read ends in the order of Config.Secrets; -1 where the variable is not set
}

// String is the variable's value: parent, init, signals, status, slack and secrets as decimal numbers, separated by spaces.
func (h handover) String() string {
	value := strconv.Itoa(h.parent)
	for _, n := range append([]int{bit(h.init), h.signals, h.status, h.slack}, h.secrets...) {
		value += " " + strconv.Itoa(n)
	}
	return value
}

// parseHandover is the inverse of String. It is false for a value that String cannot have made for that number of
// secrets.
func parseHandover(value string, secrets int) (handover, bool) {
	fields := split(value, ' ')
	if len(fields) != 5+secrets {
		return handover{}, false
	}
	numbers := make([]int, len(fields))
	for i, field := range fields {
		n, err := strconv.Atoi(field)
		if err != nil || n < -1 || (n < 0 && i < 4) {
			return handover{}, false
		}
		numbers[i] = n
	}
	if numbers[0] == 0 {
		return handover{}, false // what getppid(2) says where the parent is in another namespace
	}
	return handover{
		parent:  numbers[0],
		init:    numbers[1] == 1,
		signals: numbers[2],
		status:  numbers[3],
		slack:   numbers[4],
		secrets: numbers[5:],
	}, true
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}
