package paiinit_test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"
)

const module = "github.com/paiinit/paiinit"

// everything in a list of imports allows every package.
const everything = "*"

// imports lists what each package may import beyond the standard library, and why it may not import more. A subpackage
// without a row follows the row of its parent.
var imports = map[string]struct {
	allowed []string
	reason  string
}{
	"cmd/paiinit": {
		[]string{
			module, "github.com/urfave/cli", "github.com/miekg/dns", "golang.org/x/crypto/ssh", "golang.org/x/sys",
		},
		"the story of a launch: no other package sees all packages, and no other package knows the flags",
	},
	"early": {
		[]string{module + "/internal/proc", module + "/pid1", module + "/rsh/frame"},
		"its imports are initialised before it, and cost time",
	},
	"cmdline": {
		[]string{"github.com/urfave/cli"},
		"it makes values of words; the story says what they mean",
	},
	"cmdline/reference": {
		[]string{module + "/cmdline", "github.com/urfave/cli"},
		"it writes documents; only tests import it, so that the program does not carry it",
	},
	"envspec": {
		nil,
		"an environment becomes a Job without side effects, so the fixtures of all schedulers can be tested as text",
	},
	"hostfile": {
		nil,
		"text in, text out",
	},
	"hosts": {
		nil,
		"names in, a host out: plain values, and the caller brings the resolver",
	},
	"inspect": {
		[]string{module + "/joblog", "golang.org/x/sys"},
		"it reads files and an environment; the story brings the network, launchers and secrets",
	},
	"identify": {
		[]string{
			module + "/envspec", module + "/inspect", module + "/internal/proc", module + "/internal/rawconn",
			module + "/internal/unixsock", module + "/jobkey", module + "/launch", module + "/netif", module + "/rdma",
			module + "/secret", module + "/statedir", "golang.org/x/crypto/ssh", "github.com/miekg/dns",
			"golang.org/x/sys",
		},
		"it hands this machine to the packages that know one matter each, and none of them imports it; " +
			"it knows no flags and no rendezvous",
	},
	"install": {
		nil,
		"a file and a directory: it knows nothing else of this program",
	},
	"internal/buildversion": {
		nil,
		"a string in, a string out",
	},
	"internal/proc": {
		nil,
		"process 1 and the early remote shell import it, so it must cost nothing before main",
	},
	"internal/rawconn": {
		[]string{"golang.org/x/sys"},
		"it knows no protocol, and every package that needs a descriptor may use it",
	},
	"internal/rfc4254": {
		[]string{"golang.org/x/crypto/ssh", "golang.org/x/sys"},
		"both ends of an SSH session encode terminals and signals alike, and neither imports the other",
	},
	"internal/tcp": {
		[]string{module + "/internal/rawconn", "golang.org/x/sys"},
		"both ends of an SSH connection detect its loss by the same rules, and neither imports the other",
	},
	"internal/tuning": {
		nil,
		"it changes when the Go runtime works, and only takes numbers and channels",
	},
	"internal/unixsock": {
		[]string{module + "/internal/rawconn", "golang.org/x/sys"},
		"one place decides who may use a socket, and knows none of the protocols on it",
	},
	"jobkey": {
		[]string{"golang.org/x/crypto"},
		"it derives keys without any I/O through which a key could leak",
	},
	"joblog": {
		[]string{"golang.org/x/sys"},
		"a record becomes bytes; packages that log get a *slog.Logger, and may import this one for a sentence",
	},
	"launch": {
		[]string{module + "/internal/proc", module + "/joblog", "golang.org/x/sys"},
		"a launcher is data; hosts and keys come from the story",
	},
	"localapi": {
		[]string{module + "/internal/unixsock", "golang.org/x/sys"},
		"it asks and answers in plain structs; cmd/paiinit fills them; it lays out a status for a terminal of any size",
	},
	"netif": {
		[]string{"github.com/miekg/dns", "golang.org/x/sys"},
		"addresses in, names of networks out: the tests create their own interfaces",
	},
	"pid1": {
		[]string{module + "/internal/proc"},
		"process 1 must not fail, so it is small enough to be read in one go; " +
			"its imports are initialised before it, and internal/proc has nothing to initialise",
	},
	"probe": {
		nil,
		"plain functions in, HTTP out: it knows neither ranks nor the rendezvous, and hides net/http",
	},
	"rdma": {
		[]string{"golang.org/x/sys"},
		"it reads only the kernel's files, so the captured files of a machine are enough for a test",
	},
	"ready": {
		nil,
		"a port or a file in, a reason out: it knows neither ranks nor commands",
	},
	"rendezvous": {
		[]string{module + "/joblog", "github.com/hashicorp/memberlist"},
		"it hides memberlist: other packages get a roster and an outcome",
	},
	"restart": {
		[]string{module + "/joblog"},
		"it decides by numbers alone: the story launches, waits and reads the clock, so rules are tested as tables",
	},
	"rsh": {
		[]string{
			module + "/internal/rawconn", module + "/internal/rfc4254", module + "/internal/tcp",
			module + "/internal/unixsock", module + "/rsh/frame", "golang.org/x/crypto/ssh", "golang.org/x/sys",
		},
		"the client knows the protocol but not our server, so that tests can use real servers",
	},
	"rsh/frame": {
		nil,
		"package early imports it, so it must have nothing to initialise",
	},
	"secret": {
		nil,
		"it reads a file or a variable into one buffer, which the caller clears",
	},
	"signals": {
		nil,
		"it depends on time, and its tests use virtual time",
	},
	"sshd": {
		[]string{
			module + "/internal/proc", module + "/internal/rawconn", module + "/internal/rfc4254",
			module + "/internal/tcp", module + "/internal/unixsock", module + "/joblog",
			"github.com/gliderlabs/ssh", "golang.org/x/crypto/ssh", "github.com/pkg/sftp", "github.com/creack/pty",
			"golang.org/x/sys",
		},
		"it hides gliderlabs/ssh and pkg/sftp, and knows nothing about jobs: a logged-in peer is a key",
	},
	"sshd/sshdtest": {
		[]string{module + "/sshd", "golang.org/x/crypto/ssh"},
		"the test client of the server, for the tests of every package",
	},
	"statedir": {
		[]string{module + "/internal/proc", module + "/internal/unixsock", "golang.org/x/sys"},
		"only the kernel's locks and sockets decide who owns a directory, not flags, launchers or ranks",
	},
	"stderrlog": {
		nil,
		"its tests fill a pipe in virtual time",
	},
	"timeline": {
		nil,
		"it gets plain values and writes text, JSON and HTML: goldens are enough to test it",
	},
	"integration": {
		[]string{everything},
		"tests and harnesses may import all packages; no package imports them",
	},
	"tools": {
		nil,
		"the Makefile runs its tools before it builds anything else",
	},
}

// standard lists the packages of the standard library that only some packages may import, and why.
var standard = map[string]struct {
	only   []string
	reason string
}{
	"os/exec": {
		[]string{"launch", "sshd", "integration", "tools/notice"},
		"a package that starts a process must know how to end it, its group and the processes that it leaves",
	},
	"net": {
		[]string{
			"cmd/paiinit", "internal/tcp", "internal/unixsock", "localapi", "netif", "probe", "ready", "rendezvous",
			"rsh", "sshd", "statedir", "integration",
		},
		"all other packages can be tested without a network",
	},
	"net/http": {
		[]string{"probe", "integration"},
		"its server adds 0.8 MB to a file that goes into every image, and its client would add more",
	},
	"testing": {
		[]string{"internal/unixsock/unixsocktest", "sshd/sshdtest", "integration"},
		"tests stay out of the binary",
	},
}

type listed struct {
	ImportPath string
	Standard   bool
	Imports    []string
}

func TestImports(t *testing.T) {
	packages := list(t)
	t.Run("table", func(t *testing.T) {
		for row := range imports {
			if !strings.HasPrefix(row, "integration") && packages[module+"/"+row].ImportPath == "" && row != "tools" {
				t.Errorf("imports has a row for %s, which is not a package", row)
			}
		}
	})
	for path, pkg := range packages {
		if !within(path, module) || pkg.Standard || path == module {
			continue
		}
		name := strings.TrimPrefix(path, module+"/")
		t.Run(name, func(t *testing.T) {
			row := rowOf(name)
			if row == "" {
				t.Fatalf("%s has no row in imports: add it, with the reason for its imports", name)
			}
			for _, chain := range violations(packages, path, imports[row].allowed) {
				t.Errorf("%s\n\twhy not: %s", strings.Join(chain, " -> "), imports[row].reason)
			}
			for _, imported := range pkg.Imports {
				rule, ok := standard[imported]
				if ok && !anyWithin(name, rule.only) {
					t.Errorf("%s -> %s\n\twhy not: %s", name, imported, rule.reason)
				}
			}
		})
	}
}

// violations walks from the package at path through the packages of this module. It returns the chain to each import
// that is neither standard, nor allowed, nor the package itself or below it.
func violations(packages map[string]listed, path string, allowed []string) [][]string {
	var found [][]string
	seen := map[string]bool{path: true}
	queue := [][]string{{path}}
	for len(queue) > 0 {
		chain := queue[0]
		queue = queue[1:]
		for _, next := range packages[chain[len(chain)-1]].Imports {
			if seen[next] || packages[next].Standard || next == "C" {
				continue
			}
			seen[next] = true
			longer := append(append([]string(nil), chain...), next)
			switch {
			case within(next, path):
				queue = append(queue, longer)
			case !may(next, allowed):
				found = append(found, longer)
			}
		}
	}
	return found
}

func may(path string, allowed []string) bool {
	for _, a := range allowed {
		if a == everything || within(path, a) {
			return true
		}
	}
	return false
}

func rowOf(name string) string {
	for {
		if _, ok := imports[name]; ok {
			return name
		}
		cut := strings.LastIndexByte(name, '/')
		if cut < 0 {
			return ""
		}
		name = name[:cut]
	}
}

func within(path, parent string) bool {
	return path == parent || strings.HasPrefix(path, parent+"/")
}

func anyWithin(name string, parents []string) bool {
	for _, parent := range parents {
		if within(name, parent) {
			return true
		}
	}
	return false
}

func list(t *testing.T) map[string]listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Standard,Imports", "./...")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, stderr.String())
	}
	packages := make(map[string]listed)
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		switch err := dec.Decode(&p); {
		case errors.Is(err, io.EOF):
			return packages
		case err != nil:
			t.Fatal(err)
		}
		packages[p.ImportPath] = p
	}
}
