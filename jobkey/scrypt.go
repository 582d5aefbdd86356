package jobkey

import (
	"crypto/subtle"
	"encoding/binary"
	"slices"

	"golang.org/x/crypto/salsa20/salsa" //nolint:staticcheck // deprecated for new protocols; scrypt needs this core
)

// The parameters of scrypt (RFC 7914, 2): 128·N·r = 2 MB of memory and about 10 ms. More would be too slow, because
// hundreds of containers may share two processors.
const (
	scryptN     = 2048
	scryptR     = 8
	scryptBlock = 128 * scryptR // bytes
)

// scryptKey computes the first 32 bytes of the key of RFC 7914 (6), with p = 1, from a password of at most 64 bytes. It
// clears its memory. Package scrypt of x/crypto leaves copies of the password and of the key as garbage, which stays in
// memory beside small objects that are in use.
func scryptKey(password, salt []byte) []byte {
	prf := newMAC(password)
	x := make([]byte, 0, scryptBlock)
	for i := uint32(1); len(x) < scryptBlock; i++ {
		x = append(x, prf.pbkdf2(salt, i)...)
	}
	roMix(x)
	defer clear(x)
	return prf.pbkdf2(x, 1)
}

// pbkdf2 returns one block of PBKDF2 (RFC 8018, 5.2) with one iteration.
func (m mac) pbkdf2(salt []byte, number uint32) []byte {
	message := binary.BigEndian.AppendUint32(slices.Clone(salt), number)
	defer clear(message)
	return m.sum(message)
}

// roMix is scryptROMix of RFC 7914 (5), in place.
func roMix(x []byte) {
	v, mixed := make([]byte, scryptN*scryptBlock), make([]byte, scryptBlock)
	defer clear(v)
	defer clear(mixed)
	for i := range scryptN {
		copy(v[i*scryptBlock:], x)
		blockMix(mixed, x)
		x, mixed = mixed, x
	}
	for range scryptN {
		j := int(binary.LittleEndian.Uint64(x[scryptBlock-64:]) % scryptN)
		subtle.XORBytes(x, x, v[j*scryptBlock:][:scryptBlock])
		blockMix(mixed, x)
		x, mixed = mixed, x
	}
}

// blockMix is scryptBlockMix of RFC 7914 (4).
func blockMix(out, in []byte) {
	x := [64]byte(in[scryptBlock-64:])
	for i := range 2 * scryptR {
		subtle.XORBytes(x[:], x[:], in[i*64:][:64])
		salsa.Core208(&x, &x)
		copy(out[(i/2+i%2*scryptR)*64:], x[:])
	}
}
