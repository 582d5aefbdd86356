package sshd

import (
	"math"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

const never = time.Duration(math.MaxInt64)

// arrive adds a connection that never finishes its handshake. It returns how long the connection waited to begin.
func arrive(t *testing.T, d *admission, from netip.Addr, spoken bool) time.Duration {
	source, leave, _, _ := d.enter(&conn{}, from)
	begin := time.Now()
	release, ok := d.wait(t.Context(), source, spoken)
	t.Cleanup(func() { release(); leave() })
	if !ok {
		return never
	}
	return time.Since(begin)
}

// Unfinished handshakes from more addresses than there are shared places delay a person at another address by at most
// limits.queue, and do not delay ranks.
func TestFloodFromManyAddressesDelaysOthersBriefly(t *testing.T) {
	for name, spoken := range map[string]bool{"half-open": true, "silent": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := defaultLimits()
				d := newAdmission(&l)
				for i := range 1000 {
					go arrive(t, d, netip.AddrFrom4([4]byte{10, 0, 0, byte(i % 100)}), spoken)
				}
				synctest.Wait()
				for i := range 5 {
					from := netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})
					require.LessOrEqual(t, arrive(t, d, from, spoken), l.queue)
				}
				begin := time.Now()
				release, ok := d.wait(t.Context(), nil, true)
				defer release()
				require.True(t, ok)
				require.Zero(t, time.Since(begin), "a rank")
				release, ok = d.wait(t.Context(), nil, spoken)
				defer release()
				require.True(t, ok)
				require.LessOrEqual(t, time.Since(begin), l.queue, "a rank that sends as little")
				time.Sleep(l.login) // the turns of the other connections are over
			})
		})
	}
}

// One address gets only some of the places. All addresses of an IPv6 /64 count as one.
func TestOneHostWaitsForItself(t *testing.T) {
	for flood, waits := range map[string]map[string]bool{
		"192.0.2.1":     {"192.0.2.1": true, "192.0.2.2": false},
		"2001:db8::1":   {"2001:db8::2:3": true, "2001:db8:0:0:f::": true, "2001:db8:0:1::1": false},
		"2001:db8:1::1": {"2001:db8::1": false},
	} {
		for person, want := range waits {
			synctest.Test(t, func(t *testing.T) {
				l := defaultLimits()
				d := newAdmission(&l)
				from := netip.MustParseAddr(flood)
				for range l.turns {
					require.Zero(t, arrive(t, d, from, true))
					if from.Is6() {
						from = from.Next()
					}
				}
				waited := arrive(t, d, netip.MustParseAddr(person), true)
				require.Equal(t, map[bool]time.Duration{true: l.turn}[want], waited, "%s after %s", person, flood)
			})
		}
	}
}
