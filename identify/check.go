package identify

import (
	"context"
	"os"
	"slices"
	"strings"

	"github.com/paiinit/paiinit/inspect"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/netif"
	"github.com/paiinit/paiinit/rdma"
	"github.com/paiinit/paiinit/statedir"
)

// Launch is a launch to examine: what its command line and environment say.
type Launch struct {
	Environ    []string
	Flags      map[string]string // about the job, by variable
	Command    []string
	Dir        string // the working directory
	SecretFile string
	Insecure   bool
	StateDir   string // "" = the usual places
	LoginsIn   bool   // people may log in from outside
	ExecAll    bool   // every rank runs Command
	ImageSSH   bool   // the job uses the image's ssh
	RDMA       string // "auto", "require" or "off"

	Unknown []string        // one text for each variable of paiinit that has no meaning
	Status  func(error) int // the exit status of a launch that ends with an error
}

// Check examines this container for a launch. It raises and lowers its own limits as a launch does.
func Check(ctx context.Context, l Launch) inspect.Result {
	variable := launch.Value(l.Environ, secretVariable)
	environ := slices.DeleteFunc(slices.Clone(l.Environ), func(kv string) bool {
		return strings.HasPrefix(kv, secretVariable+"=") // no child may inherit it
	})
	_ = launch.Limits() // the result shows limits that are too low
	return inspect.Checkup{
		Root: os.DirFS("/"), Environ: environ, Command: l.Command, Dir: l.Dir, System: inspect.ThisSystem(),
		ExecAll: l.ExecAll, LoginsIn: l.LoginsIn, Insecure: l.Insecure, ImageSSH: l.ImageSSH, RDMA: l.RDMA,
		StateDir: l.StateDir, Usual: statedir.FirstPlace, Running: statedir.RunningHere(l.StateDir),
		Unknown: l.Unknown, Launchers: launch.Unversioned(), Status: l.Status,
		Place: statedir.Place, Look: launch.Look, Identify: launch.Identify, Fabric: fabric,
		Resolve: netif.Resolver{}.LookupHost, TryPort: netif.TryPort, Greeting: netif.Greeting,
		Job: func(ctx context.Context) (inspect.Job, error) {
			j, _, err := Job(ctx, environ, l.Flags)
			return inspect.Job{
				System: j.System, Alias: j.Alias, Rank: j.Rank, Size: j.Size, Port: j.Port,
				Slots: j.Slots, GPUs: j.GPUs, CPUs: j.CPUs, Hosts: j.Hosts(), Warnings: j.Warnings,
				Secret: func() (source string, length int, err error) {
					_, from, err := Keys(l.SecretFile, []byte(variable), &j)
					if err == nil && from.Name == "" && l.Insecure {
						_, err = j.Addresses() // --insecure needs them
					}
					return from.Name, from.Bytes, err
				},
			}, err
		},
	}.Run(ctx)
}

func fabric() inspect.Fabric {
	r := rdma.Probe(rdma.At("/"))
	summary, worst := r.Summary(), r.Worst()
	return inspect.Fabric{
		Summary: summary.String(), Devices: len(r.Devices), Usable: summary.Usable(),
		Problem: worst.What, Fix: worst.Fix, PeerMemory: r.PeerMemory,
	}
}
