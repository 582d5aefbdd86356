package main

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/paiinit/paiinit/hostfile"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/localapi"
	"github.com/paiinit/paiinit/netif"
)

// horovodrun has no variable for its hosts: without -H or --hostfile it runs on its own host alone, and says nothing.
// So the bin directory of the job holds a horovodrun that adds the hosts and executes the real one.

const horovodrunName = "horovodrun"

// horovodrun is bin/horovodrun: it executes the next horovodrun in PATH, with the hosts of the job where the user gave
// none.
func horovodrun(args, environ []string) int {
	path, err := lookPastSelf(horovodrunName, environ)
	if err != nil {
		complain("%v", err)
		return statusOf(err)
	}
	words := args[1:]
	if line := launch.ReadHorovodrun(words); line.Launches && !insideRank(environ) {
		add, err := askForHosts(words[:line.Options], path, environ)
		if err != nil {
			complain("horovodrun runs without the job's hosts: %v", err)
		}
		args = slices.Concat(args[:1], add, words)
	}
	become(path, args, environ)
	return 126
}

// insideRank says whether a launcher has started this process as a rank, or below one: its hosts are that launcher's.
func insideRank(environ []string) bool {
	return slices.ContainsFunc([]string{"HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"},
		func(name string) bool { return lookup(environ, name) != "" })
}

// askForHosts asks the paiinit of this container what to add. Where none runs there is nothing to add.
func askForHosts(options []string, path string, environ []string) ([]string, error) {
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
	q := localapi.HorovodrunCall{Args: append(slices.Clone(options), "COMMAND"), Dir: dir, Old: lacksNetworkOption(path)}
	for _, name := range []string{"NCCL_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE"} {
		if v := lookup(environ, name); v != "" && q.Network == "" {
			q.Network = v
		}
	}
	add, err := client.Horovodrun(context.Background(), q)
	return add, explain(err)
}

// lacksNetworkOption says whether a horovodrun is that of Horovod 0.19.1 or older, which refuses --network-interface or
// has another one. Its script tells: it imports horovod.run.run, and that of later ones horovod.run.runner or
// horovod.runner.
func lacksNetworkOption(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, 4096))
	return err == nil && bytes.Contains(b, []byte("horovod.run ")) || bytes.Contains(b, []byte("horovod.run.run "))
}

// Horovodrun says what a horovodrun in this container is given: the hosts where its user has chosen none, the
// number of processes where there is none, and the interface where it has the same name on every rank.
func (a answers) Horovodrun(ctx context.Context, q localapi.HorovodrunCall) []string {
	c := a.c
	agreed := c.agreed()
	members, names := agreed.named()
	line := launch.ReadHorovodrun(q.Args)
	if len(members) < 2 || !line.Launches {
		return nil
	}
	if c.exec == execAll {
		c.log.Warn("horovodrun gets no hosts with --exec all", "phase", "launch",
			"reason", "every rank would start the processes of all ranks",
			"hint", "with --exec rank0, the default, horovodrun starts once and uses all hosts")
		return nil
	}
	if line.Given != "" {
		c.log.Info("horovodrun gets no hosts: its command line chooses them", "phase", "launch", "option", line.Given)
		c.noteLauncher(ctx, append([]string{horovodrunName}, q.Args...), q.Dir)
		return nil
	}
	var hosts []string
	slots, remote := 0, false
	for i, m := range members {
		n := agreed.slotsOf(&m)
		if n < 1 {
			continue
		}
		if err := hostfile.Check(hostfile.Horovod, names[i]); err != nil {
			c.log.Warn("horovodrun gets no hosts", "phase", "launch", "err", err)
			return nil
		}
		// Horovod 0.28's gloo starts a process on every slot that is listed, whatever -np says.
		if room := line.Ranks - slots; line.Ranks > 0 && line.Unread == "" && room < n {
			n = max(room, 0)
		}
		if n > 0 {
			hosts = append(hosts, names[i]+":"+strconv.Itoa(n))
			remote = remote || m.Nonce != c.nonce
		}
		slots += n
	}
	if len(hosts) == 0 {
		return nil
	}
	add := []string{"-H", strings.Join(hosts, ",")}
	if line.Ranks == 0 && line.Unread == "" {
		add = append([]string{"-np", strconv.Itoa(slots)}, add...)
	}
	// Horovod 0.25 has --network-interfaces, too; this spelling is understood by all since 0.19.2. An interface for
	// hosts that are all local ends horovodrun with an error.
	network := netif.SharedInterface(endpoints(members))
	if network != "" && remote && line.Network == "" && !q.Old && (q.Network == "" || q.Network == network) &&
		c.networkHints != hintsOff && !c.settled(c.choices(), launch.HorovodInterface, slog.LevelInfo) {
		add = append(add, launch.HorovodInterface, network)
	}
	c.log.Info("horovodrun is given the hosts of this job", "phase", "launch", "added", strings.Join(add, " "))
	if line.Ranks > slots {
		c.log.Warn("horovodrun is asked for more processes than the job has slots", "phase", "launch",
			"processes", line.Ranks, "slots", slots,
			"hint", "--slots sets how many processes belong on a container")
	}
	c.noteLauncher(ctx, slices.Concat([]string{horovodrunName}, add, q.Args), q.Dir)
	return add
}
