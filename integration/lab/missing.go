package lab

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// Need is a program or library that containers use.
type Need struct {
	Try     []string // a command that succeeds if it is installed
	Package string   // the package that contains it, on Debian and Ubuntu
}

// Missing returns what this host lacks for a lab whose containers use needs, one line each, with the way to install it.
// It also tries to start a container in a lab.
func Missing(needs ...Need) []string {
	var missing []string
	programs := append([]Need{
		{[]string{"ip", "-V"}, "iproute2"},
		{[]string{"nsenter", "-V"}, "util-linux"},
	}, needs...)
	for _, n := range programs {
		if problem := try(n.Try); problem != "" {
			missing = append(missing,
				fmt.Sprintf("%s: %s; on Debian or Ubuntu: apt-get install %s", n.Try[0], problem, n.Package))
		}
	}
	switch {
	case os.Geteuid() != 0:
		missing = append(missing, "network, PID and mount namespaces need root, "+
			"or user namespaces for ordinary users, which this kernel refuses: "+
			"run the program with sudo, or set as root those that exist: "+
			"sysctl -w kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000 "+
			"kernel.apparmor_restrict_unprivileged_userns=0")
	case len(missing) == 0:
		if err := tryLab(); err != nil {
			missing = append(missing,
				fmt.Sprintf("namespaces do not work here: %v; a container needs --privileged", err))
		}
	}
	return missing
}

func try(command []string) string {
	path, err := lookSbin(command[0])
	if err != nil {
		return "not found"
	}
	out, err := exec.Command(path, command[1:]...).CombinedOutput()
	if err == nil {
		return ""
	}
	last := out[bytes.LastIndexByte(bytes.TrimSpace(out), '\n')+1:]
	return fmt.Sprintf("`%s` fails (%v: %s)", strings.Join(command, " "), err, bytes.TrimSpace(last))
}

func tryLab() error {
	l, err := New(Config{})
	if err != nil {
		return err
	}
	m, err := l.Machine("trial")
	if err == nil {
		_, err = m.Start(Program{Args: []string{"/bin/true"}})
	}
	if closing := l.Close(); err == nil {
		err = closing
	}
	return err
}
