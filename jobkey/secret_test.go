package jobkey

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/scrypt"
)

func TestWeakSecrets(t *testing.T) {
	const (
		published = "contains a placeholder from published documents"
		reference = "is a reference such as ${NAME} that was not replaced by its value"
		few       = "has fewer than 5 different bytes"
	)
	repeats := func(n int) string {
		return fmt.Sprintf("repeats %d bytes; the repeated part needs at least 16", n)
	}
	for secret, want := range map[string]string{
		"":                                    "has 0 bytes; at least 16 are needed",
		"x":                                   "has 1 bytes; at least 16 are needed",
		"kW3n7xQz0pVb4Lm":                     "has 15 bytes; at least 16 are needed",
		strings.Repeat("a", 16):               few,
		strings.Repeat("a", 99):               few,
		strings.Repeat(" ", 40):               few,
		strings.Repeat("\x00", 32):            few,
		"\t \r\n\t \r\n\t \r\n\t \r\n\t \r\n": few,
		"hello" + strings.Repeat(" ", 30):     few,
		"\x00\x00hello" + strings.Repeat("\x00", 30): few,
		"abababbbabaabbacbdcd":                       few,

		"replace-this-by-32-random-characters":   published,
		"Replace this by your own 16 characters": published,
		"replace-me-replace-me-now":              published,
		"CHANGEME-CHANGE_ME-now":                 published,
		"please-change-this!":                    published,
		"<your-secret-here>":                     published,
		"put-the-secret-here":                    published,
		"some placeholder or other":              published,
		"0123456789abcdef":                       published,
		"0123456789ABCDEF0123456789ABCDEF":       published,
		"1234567890123456":                       published,
		"abcdefghijklmnopqrstuvwxyz":             published,

		"${{ secrets.paiinit }}":      reference,
		"{{ RUNPOD_SECRET_paiinit }}": reference,
		"<% $secrets.paiinit %>":      reference,
		"${PAIINIT_SECRET}":           reference,
		"$(PAIINIT_SECRET) ":          reference,

		"abcdeabcdeabcdeabcde":                      repeats(5),
		"sesame-sesame-sesame":                      repeats(7),
		"kW3n7xQzkW3n7xQz":                          repeats(8),
		"kW3n7xQz0kW3n7xQz0":                        repeats(9),
		"kW3n7xQz0kW3n7xQz0kW":                      repeats(9),
		strings.Repeat("kW3n7xQz0pVb4Lm", 2):        repeats(15),
		strings.Repeat("kW3n7xQz0pVb4Lm", 20):       repeats(15),
		strings.Repeat("pazs1", 9) + "\x00\x00\r\n": repeats(5),
		"abcabcabcabcabcabc":                        few,
	} {
		k, err := Derive([]byte(secret), "user~train", "0")
		require.EqualError(t, err, `deriving the keys of job "user~train": the secret `+want, "%q", secret)
		require.Nil(t, k)
	}
}

func TestGoodSecrets(t *testing.T) {
	for _, secret := range []string{
		"correct horse battery staple",
		"four words and a  pause ",
		"kW3n7xQz0pVb4LmT",
		"kW3n7xQz0pVb4LmTkW3n7xQz0pVb4LmT", // a repetition of 16 bytes
		"kW3n7xQz0kW3n7xQz",                // the unit occurs once, and a part of it
		"aaaaaaaaaaaaaaaaaaaaaaaaaaabcde",  // a minimum of 5 accepts it
		"price ${19}, or $(less)",
		"-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAA\n",
	} {
		require.Empty(t, weakness([]byte(secret)), "%q", secret)
	}
	for range 10_000 { // a random secret is refused less often than once in 2^32
		b := make([]byte, 32)
		_, _ = rand.Read(b)
		for _, secret := range [][]byte{
			b[:16], b, []byte(hex.EncodeToString(b[:8])), []byte(hex.EncodeToString(b)),
			[]byte(base64.StdEncoding.EncodeToString(b)), []byte(rand.Text()),
		} {
			require.Empty(t, weakness(secret), "%q", secret)
		}
	}
}

// Derive does not change the caller's secret.
func TestWeaknessChangesNothing(t *testing.T) {
	secret := []byte(" Change-Me Change-Me ")
	before := bytes.Clone(secret)
	require.NotEmpty(t, weakness(secret))
	require.Equal(t, before, secret)
}

// Short secrets are stretched; the keys of long ones are those of HKDF alone.
func TestStretched(t *testing.T) {
	for _, n := range []int{16, 31, 32, 33} {
		text := append(bytes.Clone(secret), 32)[:n]
		k, err := Derive(text, "job", "1")
		require.NoError(t, err)
		plain := extract(text, version, "job", "1")
		salt := names(stretched, "job", "1")
		mac := hmac.New(sha256.New, text)
		mac.Write(salt)
		key, err := scrypt.Key(mac.Sum(nil), salt, 2048, 8, 1, 32)
		require.NoError(t, err)
		slow := extract(key, stretched, "job", "1")
		want := plain
		if n < 32 {
			want = slow
			require.NotEqual(t, plain.Gossip(), k.Gossip())
		}
		require.Equal(t, want.Gossip(), k.Gossip(), "%d bytes", n)
	}
}

// A short secret takes less than 4 MB of memory, which Derive returns to the system. The figures are the runtime's,
// because a process with the race detector needs several times as much.
func TestStretchGivesBack(t *testing.T) {
	var before, after runtime.MemStats
	debug.FreeOSMemory()
	runtime.ReadMemStats(&before)
	_, err := Derive(secret[:31], "job", "1")
	runtime.ReadMemStats(&after)
	require.NoError(t, err)
	require.Greater(t, after.TotalAlloc, before.TotalAlloc+2_000_000)
	require.Less(t, after.TotalAlloc, before.TotalAlloc+4_000_000)
	require.Less(t, after.HeapSys-after.HeapReleased, before.HeapSys-before.HeapReleased+1_000_000)

	debug.FreeOSMemory()
	runtime.ReadMemStats(&before)
	_, err = Derive(secret, "job", "1")
	runtime.ReadMemStats(&after)
	require.NoError(t, err)
	require.Less(t, after.TotalAlloc, before.TotalAlloc+100_000, "a long secret costs nothing")
}
