// Package jobkey derives every key that the containers of a job need from one job secret. No key is distributed: each
// container computes the same gossip key, the same login key and the host key of every peer.
//
// It hides the derivation (HKDF-SHA256, RFC 5869), which keeps the keys of different jobs, attempts, containers and
// purposes independent. It does no I/O and never prints a key. A secret should be random. The package refuses obvious
// placeholders and makes guesses of a short secret expensive (scrypt, RFC 7914), but a weak secret stays weak.
package jobkey

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"sync"

	"golang.org/x/crypto/ssh"
)

// Lengths of secrets in bytes.
const (
	minSecret  = 16 // the shortest that Derive accepts: 128 bits if it is random
	longSecret = 32 // from this length on not stretched: guessing is hopeless
)

// Each derivation starts with one of these, which keeps later versions, the insecure mode and the label apart.
const (
	version   = "paiinit/v1"
	stretched = "paiinit/v1/stretched" // of a secret shorter than longSecret
	insecure  = "paiinit/v1/insecure"
	label     = "paiinit/v1/label"
)

// Keys are the keys of one attempt of one job. They print as "[redacted]" everywhere.
type Keys struct {
	redacted
	// A function holds the key material because fmt prints unexported fields without calling any method, and follows
	// pointers if a verb does not fit, but never looks into a function.
	derive func(info string, n int) []byte
	label  string
}

// Derive computes the keys of one attempt of a job from its secret. Every container that gives the same three values
// gets the same keys.
//
// It is an error if the secret has fewer than 16 bytes, is or contains a published placeholder, is a reference that was
// not replaced by its value, has fewer than 5 different bytes, or repeats a unit of fewer than 16 bytes; for the last
// two, blanks and NULs at its ends do not count. The error names the flaw and shows nothing of the secret.
//
// Derive keeps no copy of the secret or of HKDF's pseudorandom key in memory. The caller clears its own copy. A secret
// of fewer than 32 bytes takes about 10 ms of CPU and 2 MB of memory, which Derive returns to the system.
func Derive(secret []byte, job, attempt string) (*Keys, error) {
	if flaw := weakness(secret); flaw != "" {
		return nil, fmt.Errorf("deriving the keys of job %q: the secret %s", job, flaw)
	}
	if len(secret) >= longSecret {
		return extract(secret, version, job, attempt), nil
	}
	key := stretch(secret, names(stretched, job, attempt))
	defer clear(key)
	return extract(key, stretched, job, attempt), nil
}

// Insecure computes keys from the names of job and attempt, without a secret. They separate jobs that meet by mistake
// and give every peer the expected host key, but they protect against no attacker: anyone who guesses the job's name
// can compute them, join the gossip, and log in to or impersonate every container. The caller must limit access to its
// port.
func Insecure(job, attempt string) *Keys {
	return extract([]byte(insecure), insecure, job, attempt)
}

// Random computes keys that no other container can derive, for a job of one rank.
func Random(job, attempt string) *Keys {
	secret := make([]byte, longSecret)
	_, _ = rand.Read(secret) // its documentation says that it never fails
	defer clear(secret)
	return extract(secret, version, job, attempt)
}

// extract derives the pseudorandom key of RFC 5869 (2.2) from the secret, keeps only its HMAC states, and overwrites
// the key.
func extract(secret []byte, domain, job, attempt string) *Keys {
	prk := newMAC(names(domain, job, attempt)).sum(secret)
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

// names joins strings, each after its length in 8 bytes, big endian: different lists give different bytes.
func names(domain string, parts ...string) []byte {
	b := []byte(domain)
	for _, p := range parts {
		b = binary.BigEndian.AppendUint64(b, uint64(len(p)))
		b = append(b, p...)
	}
	return b
}

// Warm computes the table that the first ed25519 key of a process needs (basepointTable in
// crypto/internal/fips140/edwards25519), so that a program can do other work during these 1.3 ms.
func Warm() { _ = ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)) }

func (k Keys) signer(info string) ssh.Signer {
	s, err := ssh.NewSignerFromSigner(ed25519.NewKeyFromSeed(k.derive(info, ed25519.SeedSize)))
	if err != nil {
		panic(err) // package ssh accepts every ed25519 key
	}
	return signer{inner: func() ssh.Signer { return s }}
}

// Gossip returns the key that encrypts the gossip: 32 bytes, for AES-256-GCM.
func (k Keys) Gossip() []byte { return k.derive("gossip", 32) }

// User returns the ed25519 key with which the containers of the job log in to each other.
func (k Keys) User() ssh.Signer { return k.signer("ssh-user") }

// Host returns the ed25519 host key of the container with that id, for example "worker-2". That container signs with
// it, and the others expect its public key.
func (k Keys) Host(id string) ssh.Signer { return k.signer("ssh-host/" + id) }

// HostKeys returns a function that derives and caches the public host keys of containers: rank 0 needs all of them to
// dial, and again for known_hosts before the launch.
func (k *Keys) HostKeys() func(id string) ssh.PublicKey {
	var keys sync.Map // by id
	return func(id string) ssh.PublicKey {
		key, ok := keys.Load(id)
		if !ok {
			key, _ = keys.LoadOrStore(id, k.Host(id).PublicKey())
		}
		return key.(ssh.PublicKey)
	}
}

// Label returns a public name of job and attempt: the first 16 hex digits of SHA-256 over both. It does not depend on
// the secret: two containers with the same label and different keys have different secrets for one job.
func (k Keys) Label() string { return k.label }

// Fingerprint returns 8 hex digits to log and compare: they are equal if secret, job and attempt are equal. They reveal
// nothing about a random secret, but confirm a correct guess of a weak one, as a recorded handshake does.
func (k Keys) Fingerprint() string { return hex.EncodeToString(k.derive("fingerprint", 4)) }

// redacted prints as "[redacted]" in every way, and so does a type that embeds it.
type redacted struct{}

func (redacted) String() string                 { return "[redacted]" }
func (r redacted) Format(f fmt.State, _ rune)   { _, _ = io.WriteString(f, r.String()) }
func (r redacted) MarshalText() ([]byte, error) { return []byte(r.String()), nil } // covers JSON
func (r redacted) LogValue() slog.Value         { return slog.StringValue(r.String()) }

// signer hides an ssh.Signer, whose own type prints the private key.
type signer struct {
	redacted
	inner func() ssh.Signer
}

func (s signer) PublicKey() ssh.PublicKey { return s.inner().PublicKey() }

func (s signer) Sign(rand io.Reader, data []byte) (*ssh.Signature, error) {
	return s.inner().Sign(rand, data)
}
