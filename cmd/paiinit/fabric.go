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
)

// What to do about verbs devices (--rdma).
const (
	rdmaAuto    = "auto"
	rdmaRequire = "require"
	rdmaOff     = "off"
)

// fabric is what this container found out about its verbs devices while it did other things. report waits for it.
type fabric struct {
	policy string
	done   chan struct{} // closed when found is complete
	found  rdma.Report
}

// look begins to look at the devices; limits of memory must have been raised before.
func (c *container) look() {
	c.fabric.policy, c.fabric.done = c.rdma, make(chan struct{})
	if c.fabric.policy == rdmaOff {
		close(c.fabric.done)
		return
	}
	go func() { // the end does not wait for it: a driver may hang
		defer close(c.fabric.done)
		where := rdma.System()
		where.Brief = true
		c.fabric.found = rdma.Probe(where)
	}()
}

// tellFabric hands what was found to the rendezvous as soon as it is known, and then to the log.
func (c *container) tellFabric(ctx context.Context) <-chan []byte {
	told := make(chan []byte, 1)
	c.serve.Go(func() {
		select {
		case <-ctx.Done():
		case <-c.fabric.done:
			told <- c.fabric.summary().Encode()
			c.sayFabric()
		}
	})
	return told
}

func (f *fabric) report() rdma.Report {
	<-f.done
	return f.found
}

// summary is what the other ranks get to know.
func (f *fabric) summary() rdma.Summary {
	r := f.report()
	s := r.Summary()
	switch f.policy {
	case rdmaOff:
		s.Flags |= rdma.FlagOff
	case rdmaRequire:
		s.Flags |= rdma.FlagRequire
	}
	return s
}

// sayFabric logs what was found.
func (c *container) sayFabric() {
	if c.fabric.policy == rdmaOff {
		return
	}
	r := c.fabric.report()
	c.log.Info("verbs devices", "phase", "identify", "rdma", r.Summary().String())
	for _, f := range r.Findings {
		if f.Severity == rdma.SeverityError {
			c.log.Warn("a verbs device cannot be used", "phase", "identify", "device", f.Device, "reason", f.What, "hint", f.Fix)
		}
	}
}

// judgeFabric is the verdict on all ranks, the same on every rank.
func judgeFabric(r rendezvous.Roster) rdma.Verdict {
	ranks := make([]rdma.Summary, len(r.Members))
	for i, m := range r.Members {
		s, err := rdma.DecodeSummary(m.Fabric)
		if err != nil { // versions are compared first
			s = rdma.Summary{}
		}
		ranks[i] = s
	}
	return rdma.Judge(ranks)
}

func foldLacks(r rendezvous.Roster, lacks []rdma.Lack) string {
	var all []rendezvous.Missing
	for _, l := range lacks {
		all = append(all, rendezvous.Missing{Rank: l.Rank, Name: fmt.Sprintf("rank %d %s", l.Rank, r.Members[l.Rank].Alias), Reason: l.Why})
	}
	return rendezvous.Fold(all)
}

// checkFabric refuses to launch where a rank that requires RDMA would have to go without it, and says what the others use.
func (c *container) checkFabric(r rendezvous.Roster) *rendezvous.Outcome {
	v := judgeFabric(r)
	lacks := foldLacks(r, v.Lacks)
	if v.Required && !v.RDMA() {
		return &rendezvous.Outcome{Status: statusUnmendable, Reason: "RDMA is required, but not usable on every rank: " + lacks}
	}
	line := []any{"phase", "check", "verdict", v.String()}
	if lacks != "" {
		line = append(line, "ranks", lacks)
	}
	if len(v.Notes) > 0 {
		line = append(line, "notes", foldLacks(r, v.Notes))
	}
	var hints []string
	if v.Devices {
		hints = append(hints, "paiinit rdma --all shows the devices of all ranks")
	}
	if slices.Contains(c.job.AzureRDMA, "paiAzRDMA") {
		hints = append(hints,
			"paiAzRDMA=true asks for RDMA: with --rdma require the job ends instead of running on TCP")
	}
	if len(hints) > 0 && !v.RDMA() && !v.Off {
		c.log.Warn("fabric", append(line, "hint", strings.Join(hints, "; "))...)
	} else {
		c.log.Info("fabric", line...)
	}
	return nil
}

// launchFabric is the verdict in terms of libraries, for this rank.
func (c *container) launchFabric(r rendezvous.Roster) launch.Fabric {
	f := fabricOf(judgeFabric(r), c.fabric.report())
	f.ConfigDir = c.state.Path
	return f
}

// fabricOf is a verdict in terms of libraries, for the rank with this report.
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

// writeFabric leaves this rank's part of the verdict where libraries look for it.
func (c *container) writeFabric(r rendezvous.Roster) error {
	config := c.launchFabric(r).UCXConfig()
	if config == "" {
		if err := os.Remove(c.state.File("ucx.conf")); err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("removing an earlier job's UCX configuration: %w", err)
		}
		return nil
	}
	if err := c.state.WriteFile("ucx.conf", []byte(config)); err != nil {
		return fmt.Errorf("writing the UCX configuration: %w", err)
	}
	return nil
}

// fabricVars are the variables of the command of this rank; a launcher carries only some of them to other hosts as they are.
func (c *container) fabricVars(r rendezvous.Roster) []launch.Var {
	f := c.launchFabric(r)
	if c.exec == execAll {
		return slices.Concat(f.Job(), f.Own())
	}
	return slices.Concat(f.Job(), f.Travelling(c.settings.command))
}

// sessionFabricVars are those of a command that another rank starts here.
func (c *container) sessionFabricVars(r rendezvous.Roster) []launch.Var {
	if len(r.Members) == 0 {
		return nil
	}
	f := c.launchFabric(r)
	return slices.Concat(f.Job(), f.Own())
}
