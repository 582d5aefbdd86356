package launch

import (
	"cmp"
	"os"
	"strings"
)

// Kubernetes truncates a termination message to this many bytes (core/v1, Container.terminationMessagePath).
const maxTermination = 4096

// WriteTermination writes the outcome of a failed job to the file that Kubernetes reads: asked, or if that is "", the
// file at Kubernetes's default path. It creates only the file that it was asked for, and returns only that file's
// errors.
func (o Outcome) WriteTermination(asked string) error {
	name := cmp.Or(asked, "/dev/termination-log")
	if _, err := os.Stat(name); o.Status == 0 || asked == "" && err != nil {
		return nil
	}
	const begin = "paiinit: "
	text := begin + o.Text(maxTermination-len(begin)-1) + "\n"
	if err := os.WriteFile(name, []byte(text), 0o644); asked != "" {
		return err
	}
	return nil
}

// Container is what is known of the container in which a command has failed.
type Container struct {
	Environ []string
	Host    string // host name
	Own     string // the scheduler's own name of it, "" = unknown
	Display string // its name in the log
	Docker  bool   // made by docker
	Compose bool   // of docker compose
	Alone   bool   // the whole job
}

// Next says what a person can do after the failure: where the log is, and what to change. ooms are the containers in
// which memory ran out, lost names those that were lost; retry reports whether another attempt may succeed.
func (c Container) Next(ooms []OOM, retry bool, lost string) string {
	steps := []string{c.log()}
	switch {
	case len(ooms) > 0:
		steps = append(steps, "raise the memory limit of "+cmp.Or(ooms[0].Place, "this container"))
	case retry && lost != "":
		steps = []string{"look at the state and the log of " + lost, "a retry may help"}
	case retry && !c.Alone:
		steps = append(steps, "look at the state and the log of the lost container", "a retry may help")
	}
	return strings.TrimPrefix(strings.Join(steps, "; "), "; ")
}

// log returns the command that shows the log of the container, or words that name it; "" in a job of one.
func (c Container) log() string {
	hash := len(c.Host) == 12 && strings.Trim(c.Host, "0123456789abcdef") == "" // docker's default host name
	switch {
	case Value(c.Environ, "KUBERNETES_SERVICE_HOST") != "":
		return "kubectl logs " + cmp.Or(Value(c.Environ, "PAIINIT_POD_NAME"), c.Host)
	case c.Docker && hash && c.Compose: // docker's DNS told the name
		return "docker logs " + cmp.Or(c.Own, c.Host)
	case c.Docker && hash:
		return "docker logs " + c.Host
	case c.Alone:
		return ""
	}
	return "see the log of " + c.Display
}
