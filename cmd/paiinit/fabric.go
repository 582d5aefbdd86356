package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

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

// tellFabric returns a channel that gets this rank's devices once the search has ended. It also logs them, and what is
// wrong with them.
func (id *identity) tellFabric(ctx context.Context, found *rdma.Search, serve *sync.WaitGroup) <-chan []byte {
	told := make(chan []byte, 1)
	serve.Go(func() {
		select {
		case <-ctx.Done():
			return
		case <-found.Done():
		}
		told <- found.Summary().Encode()
		if id.rdma == rdmaOff {
			return
		}
		r := found.Report()
		id.log.Debug("verbs devices", "phase", "identify", "rdma", r.Summary().String())
		for _, f := range r.Findings {
			if f.Severity == rdma.SeverityError {
				id.log.Warn("a verbs device cannot be used", "phase", "identify",
					"device", f.Device, "reason", f.What, "hint", f.Fix)
			}
		}
	})
	return told
}

// judgeFabric returns the verdict on all ranks, which is the same on every rank.
func judgeFabric(r rendezvous.Roster) rdma.Verdict {
	var summaries [][]byte
	for _, m := range r.Members {
		summaries = append(summaries, m.Fabric)
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
	var names []string
	for _, m := range r.Members {
		names = append(names, m.Display())
	}
	lacks := foldLacks(names, v.Lacks)
	if v.Required && !v.RDMA() {
		reason := "RDMA is required, but not usable on every rank: " + lacks
		return &rendezvous.Outcome{Status: statusUnmendable, Reason: reason}
	}
	line := []any{"phase", "check", "verdict", v.String()}
	add := func(key, value string) {
		if value != "" {
			line = append(line, key, value)
		}
	}
	add("ranks", lacks)
	add("notes", foldLacks(names, v.Notes))
	var hints []string
	if v.Devices {
		hints = append(hints, "paiinit rdma --all shows the devices of all ranks")
	}
	if slices.Contains(id.job.AzureRDMA, "paiAzRDMA") {
		hints = append(hints,
			"paiAzRDMA=true asks for RDMA: with --rdma require the job ends instead of running on TCP")
	}
	say := id.log.Debug // all ranks log the verdict when all are present
	if len(hints) > 0 && !v.RDMA() && !v.Off {
		add("hint", strings.Join(hints, "; "))
		say = id.log.Warn
	}
	say("fabric", line...)
	return nil
}

// fabricOf returns a verdict on a complete roster in terms of libraries, for the rank with report r.
func fabricOf(v rdma.Verdict, r rdma.Report) launch.Fabric {
	f := launch.Fabric{
		Kind: v.API(), SamePorts: v.SameNames, Devices: v.Devices, GPUs: v.GPUs, Required: v.Required,
		NetworkDirect: v.NetworkDirect, NoPeerMemory: !v.PeerMemory && !v.Off,
		Why: strings.TrimPrefix(v.String(), "TCP: "),
	}
	if f.Kind == launch.FabricVerbs {
		f.Ports = r.Ports(v.Fabric)
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
		return f.Vars()
	}
	return slices.Concat(f.Job(), f.Travelling(a.settings.command))
}
