package jobkey

import (
	"bytes"
	"crypto/sha256"
	"encoding"
	"encoding/binary"
	"hash"
)

// HMAC-SHA256 (RFC 2104) that leaves no copy of a key or a message in memory. The standard library keeps the last block
// of a message in the state of the hash, and copies that state for every sum; callers cannot overwrite either. This
// code writes whole blocks, which package sha256 reads in place.

// mac has the states of the two hashes after the block with the key. They suffice for sums and do not reveal the key.
type mac struct{ inner, outer []byte }

// newMAC returns the mac of a key. Only keys of at most one block leave no copy.
func newMAC(key []byte) mac {
	if len(key) > sha256.BlockSize {
		sum := sha256.Sum256(key)
		key = sum[:]
	}
	return mac{inner: keyed(key, 0x36), outer: keyed(key, 0x5c)}
}

func keyed(key []byte, pad byte) []byte {
	block := make([]byte, sha256.BlockSize)
	copy(block, key)
	for i := range block {
		block[i] ^= pad
	}
	h := sha256.New()
	_, _ = h.Write(block) // a hash never fails
	clear(block)
	return state(h)
}

// sum returns the HMAC of a message.
func (m mac) sum(message []byte) []byte {
	inner := finish(m.inner, message)
	sum := finish(m.outer, inner)
	clear(inner)
	return sum
}

// finish returns the sum of a message that follows the block whose state is begin.
func finish(begin, message []byte) []byte {
	const length = 8 // bytes of the length, in bits, at the end of the last block (FIPS 180-4, 5.1.1)
	n := len(message) + 1 + length
	n += -n & (sha256.BlockSize - 1)
	padded := make([]byte, n)
	copy(padded, message)
	padded[len(message)] = 0x80
	binary.BigEndian.PutUint64(padded[n-length:], uint64(sha256.BlockSize+len(message))<<3)

	h := sha256.New()
	if err := h.(encoding.BinaryUnmarshaler).UnmarshalBinary(begin); err != nil {
		panic(err) // a hash accepts its own state
	}
	_, _ = h.Write(padded)
	clear(padded)
	s := state(h)
	h.Reset()
	sum := bytes.Clone(s[stateSum : stateSum+sha256.Size])
	clear(s)
	return sum
}

// stateSum is the offset of the sum in the state of package sha256, after four bytes that name the hash.
const stateSum = 4

func state(h hash.Hash) []byte {
	s, err := h.(encoding.BinaryMarshaler).MarshalBinary()
	if err != nil {
		panic(err) // sha256 never fails here
	}
	return s
}
