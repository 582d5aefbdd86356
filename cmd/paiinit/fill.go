package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/paiinit/paiinit/hostfile"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/localapi"
	"github.com/paiinit/paiinit/netif"
)

// Some launchers get their hosts only from their command line. Without hosts they silently run on one host. So the bin
// directory of the job has a program of the launcher's name, which adds the hosts and executes the launcher.

// fill runs such a program: it executes the next program of its name in PATH, and adds the job's hosts if the command
// line has none.
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
			complain("%s runs without the job's hosts: %v", name, err)
		}
		args = slices.Concat(args[:1], add, words)
	}
	become(path, args, environ)
	return 126
}

// askForHosts asks the paiinit of this container which arguments to add. It adds none if no paiinit runs here.
func askForHosts(name string, how *launch.Fill, options []string, path string, environ []string) ([]string, error) {
	state, err := chooseDir(environ, "")
	if err != nil {
		return nil, err
	}
	client := clientIn(state)
	if _, err := os.Stat(client.Socket); err != nil {
		return nil, nil
	}
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	q := localapi.FillCall{Args: append(slices.Clone(options), "COMMAND"), Dir: dir, Old: lacksNetworkOption(how, path)}
	for _, variable := range how.NetworkVariables {
		if v := lookup(environ, variable); v != "" && q.Network == "" {
			q.Network = v
		}
	}
	add, err := client.Fill(context.Background(), name, q)
	return add, explain(err)
}

// lacksNetworkOption reports whether a launcher's version has no option for the network interface.
func lacksNetworkOption(how *launch.Fill, path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, 4096))
	return err == nil && how.LacksNetwork(b)
}

// Fill returns the arguments that a launcher's command line lacks: the hosts, the number of processes, and the network
// interface if it has the same name on every rank.
func (a answers) Fill(ctx context.Context, name string, q localapi.FillCall) ([]string, bool) {
	how := launch.FillNamed(name)
	if how == nil {
		return nil, false
	}
	return a.fillWords(ctx, name, how, q), true
}

func (a answers) fillWords(ctx context.Context, name string, how *launch.Fill, q localapi.FillCall) []string {
	agreed := a.c.agreed()
	members, names := agreed.named()
	line := how.Read(q.Args)
	if len(members) < 2 || !line.Launches {
		return nil
	}
	if a.c.exec == execAll {
		a.c.log.Warn(name+" gets no hosts with --exec all", "phase", "launch",
			"reason", "every rank would start the processes of all ranks",
			"hint", "with --exec rank0, the default, "+name+" starts once and uses all hosts")
		return nil
	}
	if line.Given != "" {
		a.c.log.Info(name+" gets no hosts: its command line chooses them", "phase", "launch", "option", line.Given)
		a.c.launching.asks.Note(ctx, append([]string{name}, q.Args...), q.Dir)
		return nil
	}
	var hosts []launch.HostSlots
	for i, m := range members {
		n := agreed.slotsOf(&m)
		if n < 1 {
			continue
		}
		if err := hostfile.Check(hostfile.Dialect(how.Dialect), names[i]); err != nil {
			a.c.log.Warn(name+" gets no hosts", "phase", "launch", "err", err)
			return nil
		}
		hosts = append(hosts, launch.HostSlots{Name: names[i], Slots: n, Local: m.Nonce == a.c.nonce})
	}
	add, slots, remote := how.Add(line, hosts)
	if len(add) == 0 {
		return nil
	}
	// Horovod fails if it gets an interface and all hosts are local.
	network := netif.SharedInterface(endpoints(members))
	if network != "" && remote && line.Network == "" && !q.Old && (q.Network == "" || q.Network == network) &&
		a.c.networkHints != hintsOff && !agreed.settled(agreed.choices(), how.NetworkOption, slog.LevelInfo) {
		add = append(add, how.NetworkOption, network)
	}
	a.c.log.Info(name+" is given the hosts of this job", "phase", "launch", "added", strings.Join(add, " "))
	if line.Ranks > slots {
		a.c.log.Warn(name+" is asked for more processes than the job has slots", "phase", "launch",
			"processes", line.Ranks, "slots", slots,
			"hint", "--slots sets how many processes belong on a container")
	}
	a.c.launching.asks.Note(ctx, slices.Concat([]string{name}, add, q.Args), q.Dir)
	return add
}
