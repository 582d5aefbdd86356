package main

import (
	"context"
	"os"
	"slices"

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
	path, err := launch.LookPastSelf(name, environ)
	if err != nil {
		complain("%v", err)
		return statusOf(err)
	}
	if call, ok := launch.FillNamed(name).Call(args[1:], path, environ); ok {
		add, err := askForHosts(name, call, environ)
		if err != nil {
			complain("%s runs without the job's hosts: %v", name, err)
		}
		args = slices.Concat(args[:1], add, args[1:])
	}
	complain("%v", launch.Become(path, args, environ))
	return 126
}

// askForHosts asks the paiinit of this container which arguments to add. It adds none if no paiinit runs here.
func askForHosts(name string, call launch.FillCall, environ []string) ([]string, error) {
	state, err := chooseDir(environ, "")
	if err != nil {
		return nil, err
	}
	client := clientIn(state)
	if _, err := os.Stat(client.Socket); err != nil {
		return nil, nil
	}
	if call.Dir, err = os.Getwd(); err != nil {
		return nil, err
	}
	add, err := client.Fill(context.Background(), name, localapi.FillCall(call))
	return add, explain(err)
}

// Fill returns the arguments that a launcher's command line lacks.
func (a answers) Fill(ctx context.Context, name string, q localapi.FillCall) ([]string, bool) {
	if launch.FillNamed(name) == nil {
		return nil, false
	}
	agreed := a.c.agreed()
	members, names := agreed.named()
	job := launch.FillJob{
		Everywhere: a.c.exec == execAll,
		Check:      func(dialect, host string) error { return hostfile.Check(hostfile.Dialect(dialect), host) },
		Settled:    func(option string) bool { return agreed.settled()(option) },
	}
	if a.c.networkHints != hintsOff {
		job.Network = netif.SharedInterface(endpoints(members))
	}
	for i, m := range members {
		h := launch.HostSlots{Name: names[i], Slots: m.Slots, Local: m.Nonce == a.c.nonce}
		job.Hosts = append(job.Hosts, h)
	}
	return a.c.asks().Fill(ctx, name, launch.FillCall(q), job), true
}
