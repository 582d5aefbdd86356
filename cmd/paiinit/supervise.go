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

// launching is what rank 0 knows of the launchers that its command starts.
type launching struct {
	*identity
	sessions *launch.Sessions // of launchers with other hosts
	asks     *launch.Asks     // the hosts and ranks that launchers were asked for
}

// supervisor returns the supervisor of rank 0's command, whose environment is environ. Package launch decides; this
// file feeds it with events.
func (l *launching) supervisor(r rendezvous.Roster, environ []string, stop *launch.Stopper) *launch.Supervisor {
	return launch.Supervise(launch.Supervisor{
		Line: l.settings.command, Self: l.job.Alias, Hosts: len(r.Members),
		Own: l.agent.Environ, Environ: environ, AllowPartial: l.allowPartial, Log: l.log,
		Sessions: l.sessions, Asks: l.asks, Processes: l.jobMembers,
		SinceBoot: launch.SinceBoot, Hard: stop.Abort, Gently: stop.Request, Kill: syscall.Kill,
	})
}

// supervise tells the supervisor about requests to stop and lost ranks until ctx ends.
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

// newLaunching returns a launching without sessions: onExec adds them. slots finds the slots of the hosts that a
// launcher was asked for.
func newLaunching(
	id *identity, slots func(context.Context, launch.Request) (map[string]int, error),
) launching {
	return launching{
		identity: id,
		sessions: launch.NewSessions(launch.Statuses{Lost: statusRetry, Unused: statusUnmendable}),
		asks: &launch.Asks{
			Log: id.log, Bin: id.state.File(statedir.Bin), Slots: slots,
			Dir: func(pid int) string {
				dir, _ := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid)) // "" if the process has ended
				return dir
			},
			Ours: func(pid int) bool { return runsSelf(os.DirFS("/proc"), pid) },
		},
	}
}

// onExec notes that a command was started on another host.
func (l *launching) onExec(t rsh.Target, command string) { l.sessions.Begun(t.Name, command) }

// onFailure notes that a command could not be started on another host, or that the connection to it was lost.
func (l *launching) onFailure(t rsh.Target, command, stage string, err error) {
	l.log.Warn("a remote command failed", "phase", "wait", "peer", t.Name, "stage", stage, "err", err)
	l.sessions.Failed(launch.Failure{
		Host: t.Name, Command: command, Stage: stage,
		Unknown: stage == rsh.StageResolve, Running: stage == rsh.StageSession,
	})
}

// onExit notes that a command on another host has ended.
func (l *launching) onExit(t rsh.Target, command string, s rsh.Status) {
	l.sessions.Ended(t.Name, command, s.Code, s.Signal)
}

// reconnectTimeout is how long rank 0 waits after the command's end for a rank to reconnect.
const reconnectTimeout = 3 * time.Second

// slotsAsked returns the slots of the hosts from which the launcher could choose, by alias.
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

// readHosts reads a host list in the format of Open MPI or of Hydra.
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
