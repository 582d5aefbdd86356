package launch

import (
	"cmp"
	"fmt"
	"log/slog"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Position is the place of a container in its job, as its command gets to know it. Unknown numbers are -1.
type Position struct {
	Job, Role         string
	Index, Rank, Size int
	// Master is the address of rank 0, "" if it is unknown; MasterPort is a port there, 0 for the default.
	Master     string
	MasterPort int
	// Agent is the socket of the remote shell, Hostfile the host list; "" if no paiinit runs the job yet.
	Agent, Hostfile string
}

// defaultMasterPort is the default of PyTorch's elastic launcher.
const defaultMasterPort = 29500

// Variables returns the variables that tell a command its place in the job.
func (p Position) Variables() (vars []Var) {
	set := func(value string, names ...string) {
		for _, name := range names {
			vars = append(vars, Var{Name: name, Value: value})
		}
	}
	if p.Agent != "" {
		set("1", "PAIINIT_ACTIVE") // a paiinit that is started inside the job just runs its command
		set(p.Agent, "PAIINIT_AGENT")
		set(p.Hostfile, "PAIINIT_HOSTFILE", "AZUREML_MPI_HOSTFILE", "AZ_BATCHAI_MPI_HOST_FILE")
	}
	set(p.Job, "PAIINIT_JOB")
	set(p.Role, "PAIINIT_ROLE")
	if p.Index >= 0 {
		set(strconv.Itoa(p.Index), "PAIINIT_INDEX")
	}
	if p.Size > 0 {
		set(strconv.Itoa(p.Size), "PAIINIT_SIZE")
	}
	if p.Rank >= 0 {
		set(strconv.Itoa(p.Rank), "PAIINIT_RANK", "NODE_RANK")
	}
	if p.Master != "" {
		set(p.Master, "PAIINIT_MASTER", "MASTER_ADDR")
		set(p.masterPort(), "MASTER_PORT")
	}
	return vars
}

func (p Position) masterPort() string { return strconv.Itoa(cmp.Or(p.MasterPort, defaultMasterPort)) }

// CommandEnvironment returns the environment of a command: own without what another scheduler left there, vars, and bin
// as the first directory of PATH unless it is "". The log says which variables it removes, and where the user's value
// wins.
func CommandEnvironment(own []string, vars []Var, bin string, log *slog.Logger) ([]string, error) {
	leftovers := Leftovers(own)
	for _, v := range leftovers {
		log.Debug("removed a variable of another scheduler from the command's environment", "phase", "launch",
			"variable", v.Name, "reason", v.Reason)
	}
	environ, kept := Merge(Without(own, leftovers), vars)
	for _, v := range kept {
		log.Debug("kept the job's own value of a variable", "phase", "launch", "variable", v.Name, "value", v.Value)
	}
	if search, changed := searchPath(environ, bin); changed {
		environ = append(Without(environ, []Var{{Name: "PATH"}}), "PATH="+search)
	}
	return environ, checkSizes(environ)
}

// maxVariable is MAX_ARG_STRLEN of Linux: 32 pages of 4 KiB for "NAME=value" with its final zero
// (include/uapi/linux/binfmts.h).
const maxVariable = 32 * 4096

// checkSizes returns an error that names a variable too long for execve(2), whose own error, "argument list too long",
// names none.
func checkSizes(environ []string) error {
	for _, kv := range environ {
		if n := len(kv) + 1; n > maxVariable {
			name, _, _ := strings.Cut(kv, "=")
			return fmt.Errorf("%s would be %d bytes; Linux limits one variable to %d", name, n, maxVariable)
		}
	}
	return nil
}

// Additions returns what environ lacks: the variables that it does not set, and PATH if bin must become its first
// directory.
func Additions(environ []string, vars []Var, bin string) []string {
	merged, _ := Merge(environ, vars)
	added := merged[len(environ):]
	if search, changed := searchPath(environ, bin); changed {
		added = append(added, "PATH="+search)
	}
	return added
}

// searchPath returns PATH with bin as its first directory, unless bin is "".
func searchPath(environ []string, bin string) (search string, changed bool) {
	search = Value(environ, "PATH")
	if first, _, _ := strings.Cut(search, ":"); first == bin || bin == "" {
		return search, false
	}
	return bin + ":" + cmp.Or(search, defaultPath), true
}

// TempDir returns the directory for temporary files that launchers need instead of their default: other if the default
// cannot be written, as on a read-only root file system, else "".
func TempDir(environ []string, other string) string {
	if unix.Access(cmp.Or(Value(environ, "TMPDIR"), "/tmp"), unix.W_OK|unix.X_OK) == nil {
		return ""
	}
	return other
}
