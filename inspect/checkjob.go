package inspect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Exit statuses of paiinit run.
const (
	statusUnmendable = 69
	statusSecret     = 77
	statusNotFound   = 127
)

// aboutJob reports the job as the environment tells it.
func (e *examination) aboutJob() []Finding {
	const name, seeEnv = "job", "paiinit env shows what was detected, and from which variables"
	j := e.job
	switch {
	case errors.Is(e.err, context.DeadlineExceeded):
		return []Finding{warning(name, fmt.Sprintf("not known: DNS did not answer within %v", jobTimeout),
			"check /etc/resolv.conf and its servers, or give --rank, --size and --peers")}
	case e.err != nil && e.Running != "":
		return []Finding{warning(name, e.err.Error(),
			"nothing, if the ENTRYPOINT has flags about the job: this command does not see them")}
	case e.err != nil:
		fix := "correct the variable; docs/schedulers has a page for each scheduler"
		if strings.HasPrefix(variable(e.Environ, "PAIINIT_PORT"), "tcp://") {
			fix = "rename the Kubernetes Service paiinit, or set enableServiceLinks: false in the pod"
		}
		return []Finding{failure(name, e.err.Error(), fix, e.Status(e.err))}
	}
	text := fmt.Sprintf("%s: %s, rank %s of %s, %s", j.System, j.Alias, numberOr(j.Rank, "to be agreed"),
		numberOr(j.Size, "a number that rank 0 knows"), plural(j.Slots, "slot"))
	if j.Size == 1 {
		text = fmt.Sprintf("%s: a job of one rank, %s", j.System, plural(j.Slots, "slot"))
	}
	found := []Finding{pass(name, text)}
	for _, w := range j.Warnings {
		found = append(found, warning(name, w, seeEnv))
	}
	return found
}

// variables reports PAIINIT_ variables without a meaning.
func (e *examination) variables() (found []Finding) {
	for _, text := range e.Unknown {
		found = append(found, warning("variables", text, "correct the name; docs/commands.md lists all variables"))
	}
	if found == nil {
		found = append(found, pass("variables", "every PAIINIT_ variable has a meaning"))
	}
	return found
}

// command reports whether the job's command can be run.
func (e *examination) command() Finding {
	const name = "command"
	if len(e.Command) == 0 {
		return pass(name, "none given; paiinit check COMMAND looks for it, too")
	}
	file, err := e.Look(e.Command[0], e.Environ, e.Dir)
	switch {
	case err != nil && e.job.Rank > 0 && !e.ExecAll:
		return pass(name, fmt.Sprintf("%s is not in this container, and only rank 0 runs it", e.Command[0]))
	case err != nil:
		return failure(name, err.Error(), "install it in the image, or give its path", e.Status(err))
	}
	if problem, fix := e.interpreter(file); problem != "" {
		return failure(name, file+": "+problem, fix, statusNotFound)
	}
	return pass(name, file)
}

// interpreter says why the kernel could not run a script by its first line (execve(2)); "" for other files.
func (e *examination) interpreter(file string) (problem, fix string) {
	f, err := e.Root.Open(strings.TrimPrefix(path.Clean(file), "/"))
	if err != nil {
		return "", ""
	}
	defer func() { _ = f.Close() }()
	start := make([]byte, 256) // as much as the kernel reads (BINPRM_BUF_SIZE)
	n, _ := io.ReadFull(f, start)
	line, isScript := bytes.CutPrefix(start[:n], []byte("#!"))
	line, _, _ = bytes.Cut(line, []byte("\n"))
	words := strings.Fields(string(line))
	if !isScript || len(words) == 0 {
		return "", ""
	}
	if bytes.HasSuffix(line, []byte("\r")) {
		return "its first line ends in a carriage return, which counts as part of the interpreter's name",
			"convert the file to Unix line ends: sed -i 's/\\r$//' " + file
	}
	program := words[0]
	if path.Base(program) == "env" {
		i := slices.IndexFunc(words[1:], func(w string) bool { return w[0] != '-' && !strings.Contains(w, "=") })
		if i >= 0 {
			program = words[1+i]
		}
	}
	if _, err := e.Look(program, e.Environ, e.Dir); err != nil {
		return "its first line names " + program + ", which is not in this image", "install " + path.Base(program)
	}
	return "", ""
}

// launcherLate stands for the launchers if their versions are not known in time.
const launcherLate = "?"

// launchers reports the launchers in PATH. identified is like "mpirun=Open_MPI_4.1.4 mpiexec=?".
func (e *examination) launchers(identified string) (found []Finding) {
	const name = "launchers"
	if identified == launcherLate {
		return []Finding{warning(name, "finding them took too long: a directory of PATH does not answer", "")}
	}
	var versions, others []string
	programs := make(map[string][]string) // by version
	for _, entry := range strings.Fields(identified) {
		program, version, _ := strings.Cut(entry, "=")
		if version == "?" {
			text := fmt.Sprintf("%s printed no version that paiinit knows within %v", program, versionTimeout)
			found = append(found, warning(name, text, "see whether it starts: "+program+" --version"))
			continue
		}
		version = strings.ReplaceAll(version, "_", " ")
		if programs[version] == nil {
			versions = append(versions, version)
		}
		programs[version] = append(programs[version], program)
	}
	for i, v := range versions {
		versions[i] = strings.Join(programs[v], ", ") + ": " + v
	}
	for _, program := range e.Launchers {
		if _, err := e.Look(program, e.Environ, e.Dir); err == nil {
			others = append(others, program)
		}
	}
	if len(others) > 0 {
		versions = append(versions, strings.Join(others, ", "))
	}
	switch {
	case len(versions) > 0:
		found = append(found, pass(name, strings.Join(versions, "; ")))
	case found == nil:
		found = append(found, pass(name, "none in PATH; a job without mpirun, torchrun and the like needs none"))
	}
	return found
}

// shell reports the shell, with which the server runs the commands of launchers.
func (e *examination) shell() Finding {
	const name, sh = "shell", "/bin/sh"
	_, err := e.Look(sh, e.Environ, e.Dir)
	switch {
	case err == nil:
		return pass(name, sh)
	case e.alone():
		return pass(name, "no "+sh+"; a job of one rank needs none")
	}
	return warning(name, "no "+sh+": launchers, paiinit rsh and paiinit each cannot start anything in this container",
		"install a shell in the image; only --exec all works without")
}

// ssh reports the image's ssh, which a job needs only for hosts outside of it.
func (e *examination) ssh() Finding {
	const name = "ssh"
	file, err := e.Look("ssh", e.Environ, e.Dir)
	switch {
	case err != nil && e.ImageSSH:
		return warning(name, "--ssh image, but the image has no ssh", "remove --ssh image, or install openssh-client")
	case err != nil:
		return pass(name, "paiinit; the image has none, and the job needs none")
	case e.ImageSSH:
		return pass(name, file)
	}
	return pass(name, "paiinit; the image has "+file)
}

// secret reports where the job's secret comes from and how long it is.
func (e *examination) secret() Finding {
	const name = "secret"
	const fix = "make one: head -c 32 /dev/urandom | base64; give the same one to every container, by " +
		"--secret-file FILE or PAIINIT_SECRET"
	switch {
	case e.Running != "":
		return pass(name, "the running paiinit has it")
	case e.alone():
		return pass(name, "a job of one rank needs none")
	}
	if e.job.Secret == nil {
		return warning(name, "not examined, because the job is not known", "")
	}
	source, length, err := e.job.Secret()
	switch {
	case err != nil:
		return failure(name, err.Error(), fix, statusSecret)
	case source != "" && length < 32:
		return pass(name, fmt.Sprintf("%d bytes from %s; 32 random bytes are better", length, source))
	case source != "":
		return pass(name, fmt.Sprintf("%d bytes from %s", length, source))
	case e.Insecure:
		return warning(name, "none (--insecure): every host that reaches the port and knows the job's ID can run "+
			"commands "+
			"in this container", fix)
	case e.err == nil && e.job.Size == 1:
		return pass(name, "none; a job of one rank makes a random one")
	case e.err != nil:
		return warning(name, "none found; a job of several ranks needs one", fix)
	}
	text := fmt.Sprintf("the job has %s ranks and no secret", numberOr(e.job.Size, "several"))
	return failure(name, text, fix, statusSecret)
}

// stateDir reports the directory for host lists and sockets.
func (e *examination) stateDir() Finding {
	const name = "state"
	if e.Running != "" {
		return pass(name, "a paiinit runs in this container: "+e.Running)
	}
	dir, err := e.Place(e.StateDir, e.job.Size)
	if err != nil {
		return failure(name, err.Error(), "docker run --tmpfs "+e.Usual+", a writable /dev/shm, or --state-dir DIR; "+
			"in Kubernetes an emptyDir at "+e.Usual, statusUnmendable)
	}
	return pass(name, dir)
}

// variable returns the first value of a variable.
func variable(environ []string, name string) string {
	for _, kv := range environ {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}

// numberOr formats a number that is negative if it is unknown.
func numberOr(n int, otherwise string) string {
	if n < 0 {
		return otherwise
	}
	return strconv.Itoa(n)
}

func plural(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// firstOf joins at most four words, and says how many are left out.
func firstOf(words []string) string {
	const shown = 4
	if len(words) <= shown {
		return strings.Join(words, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(words[:shown], ", "), len(words)-shown)
}
