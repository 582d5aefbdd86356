package rendezvous

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
)

// Member is one rank of an agreed roster.
type Member struct {
	Record
	Alias string // unique name without dots: "role-index", or "role-rank" if the index is unknown
}

// Roster lists all ranks in rank order. A commit makes it binding.
type Roster struct {
	Epoch   uint64 // counts rank 0's attempts to agree; 1 is the first
	Hash    string // SHA-256 over the members, in hex
	Members []Member
	Arrival Arrival // differs between ranks
}

// Self returns the member with the given nonce.
func (r *Roster) Self(nonce string) (Member, bool) {
	return r.find(func(m Member) bool { return m.Nonce == nonce })
}

func (r *Roster) find(is func(Member) bool) (m Member, ok bool) {
	if i := slices.IndexFunc(r.Members, is); i >= 0 {
		return r.Members[i], true
	}
	return Member{}, false
}

func (r *Roster) holds(id string) bool {
	_, ok := r.find(func(m Member) bool { return m.ID == id })
	return ok
}

// assign gives every record a rank: declared ranks stay, the other records fill the gaps in the order of before. The
// result depends only on the set of records, not on the order of their arrival.
func assign(records []Record, size int) ([]Member, error) {
	if len(records) != size {
		return nil, fmt.Errorf("%d containers for %d ranks", len(records), size)
	}
	members := make([]Member, size)
	var open []Record
	for _, r := range records {
		switch {
		case r.Rank < 0:
			open = append(open, r)
		case r.Rank >= size:
			return nil, fmt.Errorf("%s says that it is rank %d, but the job has ranks 0 to %d",
				r.display(), r.Rank, size-1)
		case members[r.Rank].ID != "":
			return nil, bothClaim(&members[r.Rank].Record, &r)
		default:
			members[r.Rank].Record = r
		}
	}
	slices.SortFunc(open, Record.before)
	rank := 0
	for _, r := range open {
		for members[rank].ID != "" {
			rank++
		}
		r.Rank = rank
		members[rank].Record = r
	}
	seen := make(map[string]int, size)
	for i := range members {
		m := &members[i]
		m.Alias = m.alias()
		if other, dup := seen[m.Alias]; dup {
			return nil, fmt.Errorf("ranks %d and %d are both called %s", other, m.Rank, m.Alias)
		}
		seen[m.Alias] = m.Rank
	}
	return members, nil
}

// bothClaim is the error of two containers that claim the same rank. If the environment says where each rank is, both
// give the same name or address, and only their host names tell them apart.
func bothClaim(a, b *Record) error {
	place := func(r *Record) string {
		if a.Addr != b.Addr && a.display() != b.display() || r.Host == "" {
			return fmt.Sprintf("%s at %v", r.display(), r.Addr)
		}
		return fmt.Sprintf("%s at %v on host %s", r.display(), r.Addr, r.Host)
	}
	return fmt.Errorf("%s and %s both say that they are rank %d", place(a), place(b), b.Rank)
}

// alias names a member whose rank is known.
func (r *Record) alias() string {
	if isPlain(r.Role, r.Index) {
		return r.ID
	}
	return cmp.Or(r.Role, "rank") + "-" + strconv.Itoa(r.Rank)
}

// hashMembers returns the digest that every rank compares. It covers everything on which a rank acts, nonces included.
func hashMembers(members []Member) string {
	h := sha256.Sum256(packMembers(members))
	return hex.EncodeToString(h[:])
}

// verify checks a roster of rank 0 before this rank acknowledges it. The unpacker has checked the hash.
func (r *Roster) verify(self *Record, spares bool) error {
	for i, m := range r.Members {
		if m.Rank != i {
			return fmt.Errorf("roster of epoch %d has rank %d at place %d", r.Epoch, m.Rank, i)
		}
	}
	m, ok := r.Self(self.Nonce)
	if !ok {
		return fmt.Errorf("roster of epoch %d does not hold this start of %s (nonce %s)", r.Epoch, self.ID, self.Nonce)
	}
	if self.Rank >= 0 && m.Rank != self.Rank && !spares {
		return fmt.Errorf("roster of epoch %d makes %s rank %d, but its environment says %d",
			r.Epoch, self.ID, m.Rank, self.Rank)
	}
	return nil
}
