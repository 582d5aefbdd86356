package envspec_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/envspec"
)

type hostsOnly map[string][]netip.Addr

func (h hostsOnly) LookupHost(_ context.Context, name string) ([]netip.Addr, error) {
	if h[name] == nil {
		return nil, errors.New("no such host")
	}
	return h[name], nil
}

func (hostsOnly) LookupPTR(context.Context, netip.Addr) ([]string, error) {
	return nil, errors.New("no such name")
}

// A job of one container whose service has several containers is a mistake.
func TestAlone(t *testing.T) {
	four, six := netip.MustParseAddr("172.18.0.2"), netip.MustParseAddr("fd00::2")
	other := netip.MustParseAddr("172.18.0.3")
	for name, tt := range map[string]struct {
		size    string
		dns     hostsOnly
		problem string
	}{
		"the only container":             {"1", hostsOnly{"worker": {four}}, ""},
		"the only container, dual stack": {"1", hostsOnly{"worker": {four, six}}, ""},
		"no answer":                      {"1", hostsOnly{}, ""},
		"the address of a balancer":      {"1", hostsOnly{"worker": {other}}, ""},
		"other containers": {"1", hostsOnly{"worker": {other, four, six}},
			`PAIINIT_SIZE=1 but other containers of "worker" run at 172.18.0.3`},
		"other containers of a larger job": {"2", hostsOnly{"worker": {other, four}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := envspec.Read(t.Context(), envspec.Input{
				Environ:  []string{"PAIINIT_PEERS=dns:worker", "PAIINIT_ROLE=worker", "PAIINIT_SIZE=" + tt.size},
				Resolver: tt.dns, Addrs: []netip.Addr{four, six}, Hostname: "a1b2c3", CPUs: 1,
			})
			if tt.problem == "" {
				require.NoError(t, err)
				return
			}
			var variable *envspec.VarError
			require.ErrorAs(t, err, &variable)
			require.Equal(t, "PAIINIT_SIZE", variable.Var)
			require.Equal(t, tt.problem, variable.Problem)
		})
	}
}

// If the size contradicts a complete list of peers, the error has a Job, so that the caller can tell the others.
func TestContradictionKeepsPlace(t *testing.T) {
	for peers, rank := range map[string]int{"a,b,c": 1, "a,b": 5} {
		_, err := envspec.Read(t.Context(), envspec.Input{
			Environ: []string{"PAIINIT_PEERS=" + peers, fmt.Sprint("PAIINIT_RANK=", rank), "PAIINIT_SIZE=6"}, CPUs: 1,
		})
		var variable *envspec.VarError
		require.ErrorAs(t, err, &variable)
		if rank == 5 { // no peer has it
			require.Nil(t, variable.Job)
			continue
		}
		require.Equal(t, "PAIINIT_SIZE=6 but PAIINIT_PEERS gives 3", variable.Problem)
		require.Equal(t, 3, variable.Job.Size)
		require.Equal(t, 1, variable.Job.Rank)
		require.Len(t, variable.Job.Peers, 3)
	}
	_, err := envspec.Read(t.Context(), envspec.Input{
		Environ: []string{"PAIINIT_PEERS=a,b", "PAIINIT_RANK=1", "PAIINIT_SIZE=6", "PAIINIT_SLOTS=x"}, CPUs: 1,
	})
	require.ErrorContains(t, err, "PAIINIT_SIZE=6 but PAIINIT_PEERS gives 2", "an error that all containers see "+
		"goes first")
}
