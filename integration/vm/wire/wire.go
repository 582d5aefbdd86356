// Package wire is the protocol between a test and the guest in its virtual machine: a sequence of JSON values.
package wire

// Command is a command to run in the machine, to its end.
type Command struct {
	Args    []string `json:"args"`
	Env     []string `json:"env"`     // added to PATH and HOME
	Seconds int      `json:"seconds"` // timeout

	UID        int      `json:"uid"`         // 0 = root
	Memlock    uint64   `json:"memlock"`     // RLIMIT_MEMLOCK in bytes; 0 = unchanged
	NewNetwork bool     `json:"new_network"` // run in a network namespace of its own
	FreshSys   bool     `json:"fresh_sys"`   // mount the /sys of that namespace, not that of the first one
	Hide       []string `json:"hide"`        // directories to make empty
}

// Result is the result of a Command.
type Result struct {
	Status int    `json:"status"` // -1 = killed, or not started
	Stdout string `json:"stdout"`
	Stderr string `json:"stderr"`
}
