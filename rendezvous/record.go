package rendezvous

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Record is what a container says of itself. The control connection carries all of it, gossip a part (pack.go).
type Record struct {
	ID      string         // "role-index", or Nonce in hex when the index is unknown
	Role    string         // at most 64 bytes
	Index   int            // within the role; -1 = unknown
	Rank    int            // -1 = to be agreed
	Order   int            // position of the role in rank order, for ranks that the environment does not tell
	Nonce   string         // 16 hex digits, new at every start: tells a restarted container from the one before
	Addr    netip.AddrPort // where its port is reached
	Host    string         // gethostname(2)
	Own     string         // the container's name in its scheduler's tools, at most 253 bytes; "" = it has no other one
	Slots   int            // processes that a launcher may start here; 0 = launch only
	GPUs    int            // devices seen
	Version string         // of paiinit, at most 32 bytes
	Fabric  []byte         // summary of the verbs devices, at most 64 bytes, opaque here
	Launch  string         // version of the launcher, in its own words; may be empty
	Task    int            // a port kept free here for the job; 0 = none
	Exec    string         // which ranks run the command, in the caller's words: all ranks must say the same
	Network string         // interface that has the address of Addr; "" = not known
	Uptime  int            // only in a registration: milliseconds since the start of the container; 0 = not known
}

const (
	maxRole    = 64
	maxVersion = 32
	maxOwn     = 253
	maxFabric  = 64
	nonceBytes = 8
	metaFormat = 1
)

func (r *Record) validate() error {
	_, err := parseNonce(r.Nonce)
	switch {
	case r.ID == "":
		return errors.New("record has no id")
	case len(r.Role) > maxRole:
		return fmt.Errorf("role %q is longer than %d bytes", r.Role, maxRole)
	case len(r.Version) > maxVersion:
		return fmt.Errorf("version %q is longer than %d bytes", r.Version, maxVersion)
	case len(r.Own) > maxOwn:
		return fmt.Errorf("name %q is longer than %d bytes", r.Own, maxOwn)
	case len(r.Fabric) > maxFabric:
		return fmt.Errorf("fabric summary is longer than %d bytes", maxFabric)
	case err != nil:
		return err
	case r.Index < -1 || r.Rank < -1 || r.Slots < 0 || r.GPUs < 0 || r.Order < 0 || r.Task < 0 || r.Uptime < 0:
		return fmt.Errorf("record of %s has a negative number", r.ID)
	}
	return nil
}

func parseNonce(s string) (uint64, error) {
	if len(s) != 2*nonceBytes {
		return 0, fmt.Errorf("nonce %q is not %d hex digits", s, 2*nonceBytes)
	}
	n, err := strconv.ParseUint(s, 16, 64)
	if err != nil || strings.ToLower(s) != s {
		return 0, fmt.Errorf("nonce %q is not hexadecimal", s)
	}
	return n, nil
}

// before orders containers whose ranks have to be agreed, in the same way on every container that knows the same set.
func (r Record) before(o Record) int {
	return cmp.Or(
		cmp.Compare(r.Order, o.Order),
		strings.Compare(r.Role, o.Role),
		cmp.Compare(uint(r.Index), uint(o.Index)), // -1, unknown, comes last
		r.Addr.Addr().Compare(o.Addr.Addr()),
		cmp.Compare(r.Addr.Port(), o.Addr.Port()),
		strings.Compare(r.Nonce, o.Nonce),
	)
}

// MakeID names a container: "role-index", or its nonce if the index is unknown.
func MakeID(role string, index int, nonce string) string {
	if !isPlain(role, index) {
		return nonce
	}
	return string(appendID(nil, role, index))
}

func isPlain(role string, index int) bool { return index >= 0 && role != "" }

func appendID(b []byte, role string, index int) []byte {
	return strconv.AppendInt(append(append(b, role...), '-'), int64(index), 10)
}
