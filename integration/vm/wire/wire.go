// Package wire is what a test and the guest in its virtual machine say to each other: JSON, one value after another.
package wire

// Command is a command to run in the machine, to its end.
type Command struct {
	Args    []string `json:"args"`
	Env     []string `json:"env"`     // besides PATH and HOME
	Seconds int      `json:"seconds"` // to live

	UID        int      `json:"uid"`         // 0 = root
	Memlock    uint64   `json:"memlock"`     // RLIMIT_MEMLOCK in bytes; 0 = as it is
	NewNetwork bool     `json:"new_network"` // a network namespace of its own
	FreshSys   bool     `json:"fresh_sys"`   // a /sys of that network namespace instead of the first one's
	Hide       []string `json:"hide"`        // directories that are empty
}

// Result is what became of it.
type Result struct {
	Status int    `json:"status"` // -1 = killed, or never run
	Stdout string `json:"stdout"`
	Stderr string `json:"stderr"`
}
