package pid1

import (
	"slices"
	"strconv"
)

// Variable marks the second process. It holds numbers and no secret, and Agent.Environ does not have it.
const Variable = "PAIINIT_PID1"

// ready is the first byte of handover.signals: the first process catches all signals now.
const ready = 0

// handover is what the first process passes to the agent. The file descriptors are the agent's.
type handover struct {
	parent  int   // process id of the first process: if another process is the parent, the variable is a leftover
	init    bool  // Agent.Init
	signals int   // read end: ready, then one byte for each forwarded signal, its number
	status  int   // write end: one byte, the agent's status
	slack   int   // timer slack of the job's processes in nanoseconds; -1 if unknown
	secrets []int // read ends in the order of Main's secrets; -1 where the variable is not set
}

func (h handover) files() []int {
	all := append([]int{h.signals, h.status}, h.secrets...)
	return slices.DeleteFunc(all, func(fd int) bool { return fd < 0 })
}

// String returns the variable's value: parent, init, signals, status, slack and secrets, in decimal, separated by
// spaces.
func (h handover) String() string {
	numbers := append([]int{0, h.signals, h.status, h.slack}, h.secrets...)
	if h.init {
		numbers[0] = 1
	}
	value := strconv.Itoa(h.parent)
	for _, n := range numbers {
		value += " " + strconv.Itoa(n)
	}
	return value
}

// parseHandover is the inverse of String. It returns false if String cannot have returned the value for that number of
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
		return handover{}, false // getppid(2) returns 0 if the parent is in another namespace
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
