package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/rdma"
	"github.com/paiinit/paiinit/rendezvous"
	"github.com/paiinit/paiinit/statedir"
)

// What to do about verbs devices (--rdma).
const (
	rdmaAuto    = "auto"
	rdmaRequire = "require"
	rdmaOff     = "off"
)

// look starts the search for devices. The limit of locked memory must have been raised before.
func (id *identity) look() *rdma.Search {
	where := rdma.System()
	where.Brief = true
	settings := map[string]rdma.Flags{rdmaOff: rdma.FlagOff, rdmaRequire: rdma.FlagRequire}
	return rdma.Begin(where, settings[id.rdma])
}

// tellFabric returns a channel that gets this rank's devices once the search has ended. It also logs them.
func (c *container) tellFabric(ctx context.Context) <-chan []byte {
	told := make(chan []byte, 1)
	c.serve.Go(func() {
		select {
		case <-ctx.Done():
		case <-c.devices.Done():
			told <- c.devices.Summary().Encode()
			c.sayFabric(c.devices)
		}
	})
	return told
}

// sayFabric logs the devices that the search has found, and what is wrong with them.
func (id *identity) sayFabric(found *rdma.Search) {
	if id.rdma == rdmaOff {
		return
	}
	r := found.Report()
	id.log.Info("verbs devices", "phase", "identify", "rdma", r.Summary().String())
	for _, f := range r.Findings {
		if f.Severity == rdma.SeverityError {
			id.log.Warn("a verbs device cannot be used", "phase", "identify",
				"device", f.Device, "reason", f.What, "hint", f.Fix)
		}
	}
}

// judgeFabric returns the verdict on all ranks, which is the same on every rank.
func judgeFabric(r rendezvous.Roster) rdma.Verdict {
	var summaries [][]byte
	for i := range r.Members {
		summaries = append(summaries, r.Members[i].Fabric)
	}
	return rdma.JudgeEncoded(summaries)
}

// foldLacks formats lacks. Ranks with the same lack share an entry. names are the names of all ranks.
func foldLacks(names []string, lacks []rdma.Lack) string {
	var all []rendezvous.Missing
	for _, l := range lacks {
		name := fmt.Sprintf("rank %d %s", l.Rank, names[l.Rank])
		all = append(all, rendezvous.Missing{Rank: l.Rank, Name: name, Reason: l.Why})
	}
	return rendezvous.Fold(all)
}

// checkFabric refuses to launch if a rank requires RDMA and the ranks cannot use it. It logs the verdict.
func (id *identity) checkFabric(r rendezvous.Roster) *rendezvous.Outcome {
	v := judgeFabric(r)
	names := make([]string, len(r.Members))
	for i := range r.Members {
		names[i] = r.Members[i].Alias
	}
	lacks := foldLacks(names, v.Lacks)
	if v.Required && !v.RDMA() {
		reason := "RDMA is required, but not usable on every rank: " + lacks
		return &rendezvous.Outcome{Status: statusUnmendable, Reason: reason}
	}
	line := []any{"phase", "check", "verdict", v.String()}
	if lacks != "" {
		line = append(line, "ranks", lacks)
	}
	if len(v.Notes) > 0 {
		line = append(line, "notes", foldLacks(names, v.Notes))
	}
	var hints []string
	if v.Devices {
		hints = append(hints, "paiinit rdma --all shows the devices of all ranks")
	}
	if slices.Contains(id.job.AzureRDMA, "paiAzRDMA") {
		hints = append(hints,
			"paiAzRDMA=true asks for RDMA: with --rdma require the job ends instead of running on TCP")
	}
	if len(hints) > 0 && !v.RDMA() && !v.Off {
		id.log.Warn("fabric", append(line, "hint", strings.Join(hints, "; "))...)
	} else {
		id.log.Info("fabric", line...)
	}
	return nil
}

// agreeOnFabric returns the verdict on a complete roster in terms of libraries, for this rank.
func (id *identity) agreeOnFabric(found *rdma.Search, r rendezvous.Roster) launch.Fabric {
	f := fabricOf(judgeFabric(r), found.Report())
	f.ConfigDir = id.state.Path
	return f
}

// fabricOf returns a verdict in terms of libraries, for the rank with report r.
func fabricOf(v rdma.Verdict, r rdma.Report) launch.Fabric {
	f := launch.Fabric{
		SamePorts: v.SameNames, Devices: v.Devices, GPUs: v.GPUs, Required: v.Required, NetworkDirect: v.NetworkDirect,
		NoPeerMemory: !v.PeerMemory && !v.Off,
		Why:          strings.TrimPrefix(v.String(), "TCP: "),
	}
	switch v.Fabric {
	case rdma.KindInfiniBand, rdma.KindRoCE, rdma.KindSoftware:
		f.Kind, f.Ports = launch.FabricVerbs, r.Ports(v.Fabric)
	case rdma.KindEFA:
		f.Kind = launch.FabricEFA
	case rdma.KindNone:
		f.Kind = launch.FabricTCP
	}
	if v.Off {
		f.Kind = ""
	}
	return f
}

// writeFabric writes the configuration of UCX for this rank, or removes the file of an earlier job.
func writeFabric(state *statedir.Dir, f launch.Fabric) error {
	config := f.UCXConfig()
	if config == "" {
		if err := os.Remove(state.File("ucx.conf")); err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("removing an earlier job's UCX configuration: %w", err)
		}
		return nil
	}
	if err := state.WriteFile("ucx.conf", []byte(config)); err != nil {
		return fmt.Errorf("writing the UCX configuration: %w", err)
	}
	return nil
}

// fabricVars returns the fabric's variables for the command of this rank. It leaves out variables that the launcher
// would forward to hosts where they are wrong.
func (a *agreement) fabricVars() []launch.Var {
	f := a.fabric
	if a.exec == execAll {
		return everyFabricVar(f)
	}
	return slices.Concat(f.Job(), f.Travelling(a.settings.command))
}

// everyFabricVar returns all variables of the fabric, for a command that runs on this rank only, such as a session.
func everyFabricVar(f launch.Fabric) []launch.Var { return slices.Concat(f.Job(), f.Own()) }
