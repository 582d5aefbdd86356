// Package jobkey turns one job secret into every key that the containers of a job need, so that no key is ever
// distributed: each container computes the same gossip key, the same login key and the host key of each of its peers.
//
// It hides the derivation (HKDF-SHA256, RFC 5869) and the separation of its outputs: a key of another job, another
// attempt, another container or another purpose has nothing in common with this one. It does no I/O and never prints a
// key. A secret should be random: what is certainly none is refused, and each guess of a short one costs time and
// memory (scrypt, RFC 7914), but neither makes a weak secret strong.
package jobkey

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"

	"golang.org/x/crypto/ssh"
)

// Lengths of secrets in bytes.
const (
	minSecret  = 16 // the shortest that Derive takes: 128 bits if it is random
	longSecret = 32 // not stretched: a random one cannot be guessed, and a passphrase hardly
)

// Each derivation starts with one of these, so that the outputs of a later version, of the insecure mode and of the
// label can never be equal by accident.
const (
	version   = "paiinit/v1"
	stretched = "paiinit/v1/stretched" // of a secret shorter than longSecret
	insecure  = "paiinit/v1/insecure"
	label     = "paiinit/v1/label"
)

// Keys are the keys of one attempt of one job. They print as "[redacted]" everywhere.
type Keys struct {
	// The key material is inside of a function because fmt prints the unexported fields of other people's structs
	// without asking any method, and follows pointers when the verb does not fit. It never looks into a function.
	derive func(info string, n int) []byte
	label  string
}

// Derive computes the keys of one attempt of a job from its secret. Every container that gives the same three values
// gets the same keys.
//
// It is an error if the secret has fewer than 16 bytes, is or contains a published placeholder, is a reference that was
// not replaced by its value, has fewer than 5 different bytes, or repeats a unit of fewer than 16 bytes; blanks and
// NULs at its ends do not count for the last two. The error says which, and shows nothing of the secret.
//
// Derive keeps no copy of the secret, nor of HKDF's pseudorandom key, in memory; the caller clears its own. A secret of
// fewer than 32 bytes takes about 10 ms of CPU and 2 MB of memory, which the system has back on return.
func Derive(secret []byte, job, attempt string) (*Keys, error) {
	if flaw := weakness(secret); flaw != "" {
		return nil, fmt.Errorf("deriving the keys of job %q: the secret %s", job, flaw)
	}
	if len(secret) >= longSecret {
		return extract(secret, version, job, attempt), nil
	}
	key, err := stretch(secret, names(stretched, job, attempt))
	if err != nil {
		return nil, fmt.Errorf("deriving the keys of job %q: %w", job, err)
	}
	defer clear(key)
	return extract(key, stretched, job, attempt), nil
}

// Insecure computes keys without a secret, from the names of the job and of the attempt alone. They keep jobs apart that
// meet by mistake and give every peer the host key that the others expect, but they protect against nobody: whoever
// knows or guesses the job's name computes the same keys, and with them joins the gossip, logs in to every container
// and poses as any of them. Encryption with these keys hides nothing. The caller has to limit who can reach its port.
func Insecure(job, attempt string) *Keys {
	return extract([]byte(insecure), insecure, job, attempt)
}

// extract derives the pseudorandom key of RFC 5869 (2.2) from the secret, keeps only what HMAC makes of it, and
// overwrites the rest.
func extract(secret []byte, domain, job, attempt string) *Keys {
	prk := extraction(names(domain, job, attempt), secret)
	mac := newMAC(prk)
	clear(prk)
	sum := sha256.Sum256(names(label, job, attempt))
	return &Keys{
		derive: func(info string, n int) []byte { // at most one block of RFC 5869, 2.3
			return mac.sum(append([]byte(info), 1))[:n]
		},
		label: hex.EncodeToString(sum[:8]),
	}
}

// names joins strings so that no two different lists give the same bytes: each after its length, 8 bytes big endian.
func names(domain string, parts ...string) []byte {
	b := []byte(domain)
	for _, p := range parts {
		b = binary.BigEndian.AppendUint64(b, uint64(len(p)))
		b = append(b, p...)
	}
	return b
}

// Warm computes the table of multiples that the first ed25519 key of a process needs (crypto/internal/fips140/edwards25519,
// basepointTable): 1.3 ms, which a program that has something else to do meanwhile need not wait for.
func Warm() { _ = ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)) }

func (k Keys) signer(info string) ssh.Signer {
	s, err := ssh.NewSignerFromSigner(ed25519.NewKeyFromSeed(k.derive(info, ed25519.SeedSize)))
	if err != nil {
		panic(err) // an ed25519 key is always taken
	}
	return signer{func() ssh.Signer { return s }}
}

// Gossip returns the key that encrypts the gossip: 32 bytes, for AES-256-GCM.
func (k Keys) Gossip() []byte { return k.derive("gossip", 32) }

// User returns the ed25519 key with which the containers of the job log in to each other.
func (k Keys) User() ssh.Signer { return k.signer("ssh-user") }

// Host returns the ed25519 host key of the container with that id, for example "worker-2". Its owner signs with it,
// everybody else knows from it which public key to expect.
func (k Keys) Host(id string) ssh.Signer { return k.signer("ssh-host/" + id) }

// Label returns a public name of job and attempt: the first 16 hex digits of SHA-256 over both. It does not depend on
// the secret. Two containers with the same label and different keys belong to one job and were given different secrets.
func (k Keys) Label() string { return k.label }

// Fingerprint returns 8 hex digits that may be logged and compared: they are equal if secret, job and attempt are, and
// they say nothing about a random secret. Like a recorded handshake, they confirm a right guess of a weak one.
func (k Keys) Fingerprint() string { return hex.EncodeToString(k.derive("fingerprint", 4)) }

const redacted = "[redacted]"

// Format implements fmt.Formatter for every verb.
func (k Keys) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// String implements fmt.Stringer.
func (k Keys) String() string { return redacted }

// MarshalText implements encoding.TextMarshaler, which covers JSON.
func (k Keys) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// LogValue implements slog.LogValuer.
func (k Keys) LogValue() slog.Value { return slog.StringValue(redacted) }

// signer keeps an ssh.Signer, whose own type prints its private key, from being printed.
type signer struct{ inner func() ssh.Signer }

func (s signer) PublicKey() ssh.PublicKey { return s.inner().PublicKey() }

func (s signer) Sign(rand io.Reader, data []byte) (*ssh.Signature, error) {
	return s.inner().Sign(rand, data)
}

func (s signer) Format(f fmt.State, _ rune)   { _, _ = io.WriteString(f, redacted) }
func (s signer) String() string               { return redacted }
func (s signer) MarshalText() ([]byte, error) { return []byte(redacted), nil }
func (s signer) LogValue() slog.Value         { return slog.StringValue(redacted) }
