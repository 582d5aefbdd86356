package main

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/paiinit/paiinit/hostfile"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/rsh"
	"github.com/paiinit/paiinit/statedir"
)

// supervisor returns the supervisor of rank 0's command, whose environment is environ. Package launch decides; this
// file feeds it with events.
func (c *container) supervisor(a *agreement, environ []string, stop *launch.Stopper) *launch.Supervisor {
	return launch.Supervise(&launch.Supervisor{
		Line: c.settings.command, Self: c.job.Alias, Hosts: len(a.roster.Members), Scene: a.scene(),
		Own: c.agent.Environ, Environ: environ, AllowPartial: c.allowPartial, Log: c.log,
		Sessions: c.sessions(), Asks: c.asks(), Processes: c.jobMembers, Connections: launch.ReadConnections,
		SinceBoot: launch.SinceBoot, Hard: stop.Abort, Gently: stop.Request, Kill: syscall.Kill,
	})
}

// supervise tells the supervisor about requests to stop and lost ranks until ctx ends.
func (c *container) supervise(ctx context.Context, s *launch.Supervisor) {
	for {
		select {
		case <-ctx.Done():
			return
		case want := <-c.node().Stops():
			c.noteRequest(want)
			s.Stop(launch.Stop(want))
		case l := <-c.node().Losses():
			s.Lost(launch.Loss(l))
		}
	}
}

// stopRanks signals the ranks that a launcher of this job has started in this container.
func (id *identity) stopRanks(sig syscall.Signal) {
	for _, r := range launch.Ranks(id.jobMembers(), id.agent.Environ) {
		_ = syscall.Kill(r, sig) // it may have ended meanwhile
	}
}

// jobMembers returns the processes of the job in this container.
func (id *identity) jobMembers() []launch.Process { return launch.ReadProcesses(id.first) }

// launchers is what rank 0 knows of the launchers that its command starts in one generation.
type launchers struct {
	sessions *launch.Sessions // by which they reach other hosts
	asks     *launch.Asks     // the hosts and ranks that they were asked for
}

// followLaunchers begins anew to follow the launchers that the command starts.
func (c *container) followLaunchers() {
	c.followed.Store(&launchers{
		sessions: launch.NewSessions(launch.Statuses{Lost: statusRetry, Unused: statusUnmendable}),
		asks: &launch.Asks{
			Log: c.log, Bin: c.state.File(statedir.Bin), Ours: launch.RunsSelf,
			Slots: func(ctx context.Context, r launch.Request) (map[string]int, error) {
				return c.agreed().slotsAsked(ctx, r)
			},
		},
	})
}

func (c *container) sessions() *launch.Sessions { return c.followed.Load().sessions }

func (c *container) asks() *launch.Asks { return c.followed.Load().asks }

// onFailure notes that a command could not be started on another host, or that the connection to it was lost.
func (a answers) onFailure(t rsh.Target, command, stage string, err error) {
	a.c.log.Warn("a remote command failed", "phase", "wait", "peer", t.Name, "stage", stage, "err", err)
	a.c.sessions().Failed(launch.Failure{
		Host: t.Name, Command: command, Stage: stage,
		Unknown: stage == rsh.StageResolve, Running: stage == rsh.StageSession,
	})
}

// reconnectTimeout is how long rank 0 waits after the command's end for a rank to reconnect.
const reconnectTimeout = 3 * time.Second

// slotsAsked returns the slots of the hosts from which the launcher could choose, by alias.
func (a *agreement) slotsAsked(ctx context.Context, request launch.Request) (map[string]int, error) {
	all := make(map[string]int)
	for _, m := range a.roster.Members {
		all[m.Alias] = m.Slots
	}
	find := func(host string) (string, bool) {
		t, ok := a.resolve(ctx, host)
		return t.Name, ok
	}
	return request.Slots(all, find, readHosts)
}

// readHosts reads a host list in the format of Open MPI or of Hydra.
func readHosts(name string) (list []launch.HostSlots, err error) {
	b, err := os.ReadFile(filepath.Clean(name))
	if err != nil {
		return nil, err
	}
	hosts, err := hostfile.ParseAny(b)
	for _, h := range hosts {
		list = append(list, launch.HostSlots{Name: h.Name, Slots: h.Slots})
	}
	return list, err
}
