package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/paiinit/paiinit/hostfile"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/rendezvous"
	"github.com/paiinit/paiinit/rsh"
	"github.com/paiinit/paiinit/statedir"
)

// supervisor watches the command of rank 0, whose environment is environ. Package launch judges; what is here hears,
// and passes on.
func (c *container) supervisor(r rendezvous.Roster, environ []string, stop *launch.Stopper) *launch.Supervisor {
	return launch.Supervise(launch.Supervisor{
		Line: c.settings.command, Self: c.job.Alias, Hosts: len(r.Members),
		Own: c.agent.Environ, Environ: environ, AllowPartial: c.allowPartial, Log: c.log,
		Sessions: c.sessions, Asks: c.asks, Processes: c.jobMembers,
		SinceBoot: launch.SinceBoot, Hard: stop.Abort, Gently: stop.Request, Kill: syscall.Kill,
	})
}

// supervise passes on what other ranks want, and which ranks are lost, until ctx ends.
func (c *container) supervise(ctx context.Context, s *launch.Supervisor) {
	for {
		select {
		case <-ctx.Done():
			return
		case want := <-c.node.Stops():
			s.Stop(launch.Stop(want))
		case l := <-c.node.Losses():
			s.Lost(launch.Loss(l))
		}
	}
}

// newSessions hears of the sessions to other hosts, see onExec.
func newSessions() *launch.Sessions {
	return launch.NewSessions(launch.Statuses{Lost: statusRetry, Unused: statusUnmendable})
}

// newAsks remembers what the launchers of the command are asked for.
func (c *container) newAsks() *launch.Asks {
	return &launch.Asks{
		Log: c.log, Bin: c.state.File(statedir.Bin), Slots: func(ctx context.Context, r launch.Request) (map[string]int, error) {
			return c.agreed().slotsAsked(ctx, r)
		},
		Dir: func(pid int) string {
			dir, _ := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid)) // "" if the process has ended
			return dir
		},
		Ours: func(pid int) bool { return runsSelf(os.DirFS("/proc"), pid) },
	}
}

// onExec hears of a command that was started on another host.
func (c *container) onExec(t rsh.Target, command string) { c.sessions.Begun(t.Name, command) }

// onFailure hears of a command on another host that could not be started, or was lost.
func (c *container) onFailure(t rsh.Target, command, stage string, err error) {
	c.log.Warn("a remote command failed", "phase", "wait", "peer", t.Name, "stage", stage, "err", err)
	c.sessions.Failed(launch.Failure{
		Host: t.Name, Command: command, Stage: stage,
		Unknown: stage == rsh.StageResolve, Running: stage == rsh.StageSession,
	})
}

// onExit hears of a command on another host that has ended.
func (c *container) onExit(t rsh.Target, command string, s rsh.Status) {
	c.sessions.Ended(t.Name, command, s.Code, s.Signal)
}

// absence is how long a rank that is away when the command has ended may take to come back.
const absence = 3 * time.Second

// absent is the first rank that is gone, nil if there is none: settle is for how long it may still turn out to be.
func (c *container) absent(ctx context.Context, settle time.Duration) *launch.Loss {
	for _, l := range c.node.Absent(context.WithoutCancel(ctx), settle, absence) {
		lost := launch.Loss(l)
		return &lost
	}
	return nil
}

// slotsAsked are the slots of the hosts among which the launcher was to choose, by alias.
func (a *agreement) slotsAsked(ctx context.Context, request launch.Request) (map[string]int, error) {
	count := make(map[string]int)
	hostfile := request.Hostfile
	if request.HostfileOptional {
		if _, err := os.Stat(hostfile); err != nil {
			hostfile = ""
		}
	}
	switch {
	case request.Hosts != nil:
		for _, h := range request.Hosts {
			t, ok := a.resolve(ctx, h)
			if !ok {
				return nil, fmt.Errorf("%s is no container of this job", h)
			}
			count[t.Name]++
		}
	case hostfile != "":
		hosts, err := readHosts(hostfile)
		if err != nil {
			return nil, err
		}
		for _, h := range hosts {
			t, ok := a.resolve(ctx, h.Name)
			if !ok {
				return nil, fmt.Errorf("%s is no container of this job", h.Name)
			}
			count[t.Name] += h.Slots
		}
	default:
		for i := range a.roster.Members {
			m := &a.roster.Members[i]
			count[m.Alias] = a.slotsOf(m)
		}
	}
	for _, h := range request.Without {
		if t, ok := a.resolve(ctx, h); ok {
			delete(count, t.Name)
		}
	}
	return count, nil
}

// readHosts reads a host list in the form of Open MPI or of hydra.
func readHosts(name string) (hosts []hostfile.Host, err error) {
	b, err := os.ReadFile(filepath.Clean(name))
	if err != nil {
		return nil, err
	}
	if hosts, err = hostfile.Parse(bytes.NewReader(b), hostfile.OpenMPI); err != nil {
		hosts, err = hostfile.Parse(bytes.NewReader(b), hostfile.Hydra)
	}
	return hosts, err
}
