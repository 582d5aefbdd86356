package launch

import (
	"bytes"
	"context"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// versions is how each launcher answers --version, as regular expressions: compiled here, every start of the program would pay for them.
var versions = []struct{ text, name string }{
	{`\(IBM Spectrum MPI\) (\S+)`, "Spectrum MPI"},
	{`\((?:Open MPI|OpenRTE)\) (\S+)`, "Open MPI"},
	{`\(PRRTE\) (\S+)`, "PRRTE"},
	{`Intel\(R\) MPI Library.*,? Version (.*?)(?: Build|$)`, "Intel MPI"},
	{`(?s)HYDRA build details:.*?Version:\s+(\S+)`, "MPICH"},
}

// identified gives a name and a version to what a launcher printed, "" if it is none that is known.
func identified(output string) string {
	for _, v := range versions {
		if m := regexp.MustCompile(v.text).FindStringSubmatch(output); m != nil {
			return v.name + " " + strings.TrimSpace(m[1])
		}
	}
	return ""
}

// candidates are the launchers that a script may call; a command that is one itself is the only one.
var candidates = []string{"mpirun", "mpiexec", "mpiexec.hydra"}

// versionPatience is more than any launcher needs to say its version, on a cold file system, too.
const versionPatience = 5 * time.Second

// lowest is the nice value (sched(7)) of what takes only the time that nobody else needs.
const lowest = 19

// Identify runs the launcher that command is, or those that it may call, with --version, and returns what they are as
// "mpirun=Open MPI 4.1.4 mpiexec.hydra=MPICH 4.0.2"; "" if there is none, or none that is known. Where the answer is in no hurry, they run
// with the lowest priority: two of them take 5 to 10 ms of processor time.
func Identify(ctx context.Context, command, environ []string, hurry bool) string {
	names := candidates
	if len(command) > 0 && IsLauncher(command[0]) {
		names = command[:1]
	}
	found := make([]string, len(names))
	ctx, cancel := context.WithTimeout(ctx, versionPatience)
	defer cancel()
	programs := make(map[string][]int) // the names of each: mpirun and mpiexec are often one, and every start of it delays the launch
	for i, name := range names {
		path, err := Look(name, environ, "")
		if err != nil {
			continue
		}
		if target, err := filepath.EvalSymlinks(path); err == nil {
			path = target
		}
		programs[path] = append(programs[path], i)
	}
	var running sync.WaitGroup
	for path, called := range programs {
		running.Go(func() {
			cmd := exec.CommandContext(ctx, path, "--version")
			cmd.Env = Without(environ, Leftovers(environ))
			cmd.WaitDelay = time.Second
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			if cmd.Start() != nil {
				return
			}
			if !hurry {
				_ = unix.Setpriority(unix.PRIO_PROCESS, cmd.Process.Pid, lowest)
			}
			_ = cmd.Wait() // one that fails may have said it
			v := identified(out.String())
			if v == "" {
				return
			}
			for _, i := range called {
				found[i] = filepath.Base(names[i]) + "=" + strings.ReplaceAll(v, " ", "_")
			}
		})
	}
	running.Wait()
	return strings.Join(slices.DeleteFunc(found, func(s string) bool { return s == "" }), " ")
}

// Differ compares what [Identify] found on several hosts, by the name of the host. It returns one line that names them, "" if
// every launcher that the first one has is the same everywhere.
func Differ(hosts, found []string) string {
	if len(found) == 0 {
		return ""
	}
	for first := range strings.FieldsSeq(found[0]) {
		name, _, _ := strings.Cut(first, "=")
		var kinds []string
		who := make(map[string][]string)
		for i, f := range found {
			kind := "none"
			for entry := range strings.FieldsSeq(f) {
				if n, v, _ := strings.Cut(entry, "="); n == name {
					kind = strings.ReplaceAll(v, "_", " ")
				}
			}
			if who[kind] == nil {
				kinds = append(kinds, kind)
			}
			who[kind] = append(who[kind], hosts[i])
		}
		if len(kinds) < 2 {
			continue
		}
		var parts []string
		for _, k := range kinds {
			const most = 4
			list := strings.Join(who[k][:min(most, len(who[k]))], ",")
			if len(who[k]) > most {
				list += ",..."
			}
			parts = append(parts, k+" on "+list)
		}
		return name + " is not the same on all ranks: " + strings.Join(parts, "; ")
	}
	return ""
}
