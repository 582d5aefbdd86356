package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/paiinit/paiinit/hostfile"
	"github.com/paiinit/paiinit/launch"
)

// A launcher that learns its hosts from its command line alone runs on its own host without them, and says nothing. So
// the bin directory of the job holds a program of its name that adds the hosts and executes the real one.

// fillCall is what the paiinit of a container has to know of such a launcher that starts there.
type fillCall struct {
	Args []string `json:"args"` // without those of COMMAND
	Dir  string   `json:"dir"`  // working directory
	// Network is the interface that the environment names, "" if it names none.
	Network string `json:"network"`
	// Old says that this launcher has no option for the interface.
	Old bool `json:"old"`
}

// fill is a program in bin/: it executes the next program of its name in PATH, with the hosts of the job where the user
// gave none.
func fill(name string, args, environ []string) int {
	path, err := lookPastSelf(name, environ)
	if err != nil {
		complain("%v", err)
		return statusOf(err)
	}
	words := args[1:]
	how := launch.FillNamed(name)
	if line := how.Read(words); line.Launches && !launch.InsideRank(environ) {
		add, err := askForHosts(name, how, words[:line.Options], path, environ)
		if err != nil {
			complain("%s is executed as it was called: %v", name, err)
		}
		args = slices.Concat(args[:1], add, words)
	}
	become(path, args, environ)
	return 126
}

// askForHosts asks the paiinit of this container what to add. Where none runs there is nothing to add.
func askForHosts(name string, how *launch.Fill, options []string, path string, environ []string) ([]string, error) {
	state, err := chooseDir(environ, "")
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(state, questionName)
	if _, err := os.Stat(socket); err != nil {
		return nil, nil
	}
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	q := fillCall{Args: append(slices.Clone(options), "COMMAND"), Dir: dir, Old: lacksNetworkOption(how, path)}
	for _, variable := range how.NetworkVariables {
		if v := lookup(environ, variable); v != "" && q.Network == "" {
			q.Network = v
		}
	}
	r, err := asker{socket: socket}.ask(question{Ask: name, Fill: &q})
	return r.Add, err
}

// lacksNetworkOption reports whether a launcher is of a version without an option for its interface.
func lacksNetworkOption(how *launch.Fill, path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, 4096))
	return err == nil && how.LacksNetwork(b)
}

// answerFill says what a launcher without hosts in this container is given: the hosts where its user has chosen none,
// the number of processes where there is none, and the interface where it has the same name on every rank.
func (c *container) answerFill(ctx context.Context, name string, how *launch.Fill, q fillCall) reply {
	members, names := c.named()
	line := how.Read(q.Args)
	if len(members) < 2 || !line.Launches {
		return reply{}
	}
	if c.exec == execAll {
		c.log.Warn(name+" gets no hosts with --exec all", "phase", "launch",
			"reason", "every rank would start the processes of all ranks",
			"hint", "with --exec rank0, the default, "+name+" starts once and uses all hosts")
		return reply{}
	}
	if line.Given != "" {
		c.log.Info(name+" gets no hosts: its command line chooses them", "phase", "launch", "option", line.Given)
		c.asks.Note(ctx, append([]string{name}, q.Args...), q.Dir)
		return reply{}
	}
	var hosts []launch.HostSlots
	for i, m := range members {
		n := c.slotsOf(m)
		if n < 1 {
			continue
		}
		if err := hostfile.Check(hostfile.Dialect(how.Dialect), names[i]); err != nil {
			c.log.Warn(name+" gets no hosts", "phase", "launch", "err", err)
			return reply{}
		}
		hosts = append(hosts, launch.HostSlots{Name: names[i], Slots: n, Local: m.Nonce == c.nonce})
	}
	add, slots, remote := how.Add(line, hosts)
	if len(add) == 0 {
		return reply{}
	}
	// An interface for hosts that are all local ends Horovod with an error.
	network := commonInterface(members)
	if network != "" && remote && line.Network == "" && !q.Old && (q.Network == "" || q.Network == network) &&
		c.networkHints != hintsOff && !c.settled(c.choices(), how.NetworkOption, slog.LevelInfo) {
		add = append(add, how.NetworkOption, network)
	}
	c.log.Info(name+" is given the hosts of this job", "phase", "launch", "added", strings.Join(add, " "))
	if line.Ranks > slots {
		c.log.Warn(name+" is asked for more processes than the job has slots", "phase", "launch",
			"processes", line.Ranks, "slots", slots,
			"hint", "--slots sets how many processes belong on a container")
	}
	c.asks.Note(ctx, slices.Concat([]string{name}, add, q.Args), q.Dir)
	return reply{Add: add}
}
