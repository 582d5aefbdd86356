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

// identified returns the name and version that a launcher printed, "" if the text is unknown.
func identified(output string) string {
	for _, l := range launchers {
		for _, v := range l.Versions {
			if m := regexp.MustCompile(v.text).FindStringSubmatch(output); m != nil {
				return v.name + " " + strings.TrimSpace(m[1])
			}
		}
	}
	return ""
}

// Unversioned returns the programs of the launchers whose versions [Identify] does not ask for.
func Unversioned() (names []string) {
	for _, l := range launchers {
		if len(l.Compared) == 0 {
			names = append(names, l.Programs...)
		}
	}
	return names
}

// candidates returns the launchers that a script may call.
func candidates() (names []string) {
	for _, l := range launchers {
		for _, name := range l.Compared {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// versionTimeout bounds one --version. It is long, because the start of the job may overload the host; the job waits
// only with --require-same-launcher.
const versionTimeout = time.Minute

// unknown stands for the version of a launcher that did not answer in time, or whose answer was not understood.
const unknown = "?"

// behind is added to the nice value (sched(7)) of a query that nobody waits for, which then gets a tenth of the
// processor time of any other process. It is not more, because a killed process needs processor time to die, and the
// container ends after it: beside 16 busy processes on 2 CPUs it took 2 s at 19, the lowest priority, and 0.2 s at 10.
const behind = 10

// Identify asks launchers for their versions: the launcher that command is, or all that it may call. It returns
// "mpirun=Open_MPI_4.1.4 mpiexec.hydra=?" if one answers and one does not, "" if there are none. Without hurry they run
// at a low priority, because two of them take 5 to 10 ms of processor time.
func Identify(ctx context.Context, command, environ []string, hurry bool) string {
	names := candidates()
	if len(command) > 0 && IsLauncher(command[0]) {
		names = command[:1]
	}
	found := make([]string, len(names))
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	own, err := unix.Getpriority(unix.PRIO_PROCESS, 0) // of the kernel, 20 - nice: getpriority(2)
	low := err == nil && !hurry
	// Names are grouped by program, because mpirun and mpiexec are often the same, and each start delays the launch.
	programs := make(map[string][]int)
	for i, name := range names {
		path, err := Look(name, environ, "")
		if err != nil {
			continue
		}
		path = resolved(path)
		found[i] = filepath.Base(name) + "=" + unknown
		programs[path] = append(programs[path], i)
	}
	var running sync.WaitGroup
	for path, called := range programs {
		running.Go(func() {
			cmd := exec.CommandContext(ctx, path, versionOption(names[called[0]]))
			cmd.Env = Without(environ, Leftovers(environ))
			cmd.WaitDelay = time.Second
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			if cmd.Start() != nil {
				return
			}
			if low {
				_ = unix.Setpriority(unix.PRIO_PROCESS, cmd.Process.Pid, 20-own+behind)
			}
			_ = cmd.Wait() // a launcher that fails may still have printed its version
			v := identified(out.String())
			if v == "" {
				return
			}
			for _, i := range called {
				found[i] = strings.TrimSuffix(found[i], unknown) + strings.ReplaceAll(v, " ", "_")
			}
		})
	}
	running.Wait()
	return strings.Join(slices.DeleteFunc(found, func(s string) bool { return s == "" }), " ")
}

// versionOption returns the option with which a program prints its version.
func versionOption(program string) string {
	for _, l := range launcherPrograms(filepath.Base(program)) {
		if l.VersionOption != "" {
			return l.VersionOption
		}
	}
	return "--version"
}

// Known reports whether the result of [Identify] holds a known version.
func Known(found string) bool {
	isKnown := func(entry string) bool { return !strings.HasSuffix(entry, "="+unknown) }
	return slices.ContainsFunc(strings.Fields(found), isKnown)
}

// Differ compares the results of [Identify] on several hosts. It returns one line that names a launcher whose version
// differs from the first host's, "" if there is none. An unknown version counts only if strict: an overloaded host that
// did not answer in time most probably has the same version.
func Differ(hosts, found []string, strict bool) string {
	if len(found) == 0 {
		return ""
	}
	for _, first := range strings.Fields(found[0]) {
		name, version, _ := strings.Cut(first, "=")
		if version == unknown {
			continue
		}
		var kinds []string
		on := make(map[string][]string)
		for i, f := range found {
			kind := versionIn(f, name)
			if kind == unknown {
				if !strict {
					continue
				}
				kind = "unknown version"
			}
			if on[kind] == nil {
				kinds = append(kinds, kind)
			}
			on[kind] = append(on[kind], hosts[i])
		}
		if len(kinds) < 2 {
			continue
		}
		for i, kind := range kinds {
			list := on[kind]
			if len(list) > 4 {
				list = append(list[:4], "...")
			}
			kinds[i] = kind + " on " + strings.Join(list, ",")
		}
		return name + " is not the same on all ranks: " + strings.Join(kinds, "; ")
	}
	return ""
}

// versionIn returns the version of a launcher in the result of [Identify].
func versionIn(found, name string) string {
	for _, entry := range strings.Fields(found) {
		if version, ok := strings.CutPrefix(entry, name+"="); ok {
			return strings.ReplaceAll(version, "_", " ")
		}
	}
	return "none"
}
