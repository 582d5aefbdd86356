package jobkey

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	"pgregory.net/rapid"
)

var secret = []byte(
	"\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f" +
		"\x10\x11\x12\x13\x14\x15\x16\x17\x18\x19\x1a\x1b\x1c\x1d\x1e\x1f",
)

// The expected values were computed without this package, with the hmac and hashlib modules of Python:
//
//	names(domain, *parts) = domain + b"".join(struct.pack(">Q", len(p)) + p for p in parts)
//	prk    = hmac(key=names("paiinit/v1", job, attempt), msg=secret)      RFC 5869, 2.2
//
// where for a secret of fewer than 32 bytes "paiinit/v1" is "paiinit/v1/stretched", and the secret is replaced by
//
//	salt = names("paiinit/v1/stretched", job, attempt)
//	scrypt(hmac(key=secret, msg=salt), salt=salt, n=2048, r=8, p=1, dklen=32)
//
//	okm    = hmac(key=prk, msg=info + b"\x01")                            RFC 5869, 2.3, one block
//	label  = sha256(names("paiinit/v1/label", job, attempt))[:8]
//
// and the public keys from these seeds with openssl (RFC 8410 wrapping):
//
//	(echo 302e020100300506032b657004220420 | xxd -r -p; cat seed) |
//	  openssl pkey -inform DER -pubout -outform DER | tail -c 32
func TestKnownAnswers(t *testing.T) {
	derive := func(secret []byte, job, attempt string) *Keys {
		k, err := Derive(secret, job, attempt)
		require.NoError(t, err)
		return k
	}
	tests := []struct {
		name                             string
		keys                             *Keys
		gossip, user, worker2, launcher0 string
		fingerprint, label               string
	}{
		{
			"secret", derive(secret, "user~train", "0"),
			"816dd7d00b79dee7232e411e9cf708d405e41c11400cac45614d44f51004c117",
			"91054d022f88f5393228d68356fe793a54dcd5e58be59572c2d37c5794ba5c5a",
			"fb07745702981af24f9f1d86b891edef2386a583555e703e2d38d1befb75049f",
			"edf4ddadfd3085f6ca0fabff8179370e935b2985cb13f91842141990a1da99fa",
			"752d3998", "c5d68c86701819ea",
		},
		{
			"no names", derive([]byte("correct horse battery staple and a pony"), "", ""),
			"14db9b224af5484d3b8aee0edb06cbde1864f15151aad5a43d73e0f23c96de5d",
			"233997e12cf0e5664da2ab91767bad1df1735fdefd0639c2120f708362eb0b86",
			"3746db97b2eb02da6a19739bf635b71c7d8522b69fc57fcd4785c3211d3545ad",
			"0cd1606adc85e560acd6810101cc287f430518c80123a373a6c3e29e9afd373b",
			"8db1a2f2", "c4b9a46d50b9804a",
		},
		{
			"short secret, no names", derive([]byte("correct horse battery staple"), "", ""),
			"51f161dbc251c377461f3ae9d844ffa3c07158d28d1f8ecc750c01c63ebafdf6",
			"514eb10880d0a58e3147a2712117e6b07a29d9b7d93aa1e55dd9157b94c50c42",
			"cce47f4535b84de893476748d6e3f40301b532a51be4c1f2a326a63662bbec2d",
			"2a1a0a6ea6ecff67df4ca3cd1188122709c9b3e4228301c41d74dfa066fc4369",
			"f9658b67", "c4b9a46d50b9804a",
		},
		{
			"longest short secret", derive(secret[:31], "user~train", "0"),
			"840c18d81aa84398a2ae9c9e1aab6474ee68bc56b26772f556122cf9e8505dfe",
			"6ccbd1048ac217367ae856f9db1229e4fa3738b2f4b320ac5a5fa1c5d0e62961",
			"f3e725f73630ac8bd53f6925c06ff91a2c0f19860318890f8e7debb3f6c8ed95",
			"cbac50210fc623a6626ba46caad925a0fe706f87d59f4062aabf36e2a34d3136",
			"c6d94aac", "c5d68c86701819ea",
		},
		{
			"insecure", Insecure("user~train", "0"),
			"ff885e945eaf9fdbbed02c922c397d2403a9a0b395c74782e1d3d07f0d423638",
			"1d6b2ebad0438cd7494d7803f88d9699b28a9144def91b4d9ec84ee25c729d61",
			"a7296eb30c2ec2eff35686572d48d7a076738232659d7e1136795e7ab24ae957",
			"7e7d906245b0cf10a80e19f9146a5987e03e48cb3ecb8dfbcb5c82dedd38fdcd",
			"72a97da4", "c5d68c86701819ea",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			require.Equal(t, tt.gossip, hex.EncodeToString(tt.keys.Gossip()))
			require.Equal(t, tt.user, public(tt.keys.User()))
			require.Equal(t, tt.worker2, public(tt.keys.Host("worker-2")))
			require.Equal(t, tt.launcher0, public(tt.keys.Host("launcher-0")))
			require.Equal(t, tt.fingerprint, tt.keys.Fingerprint())
			require.Equal(t, tt.label, tt.keys.Label())
		})
	}
}

func public(s ssh.Signer) string {
	return hex.EncodeToString(s.PublicKey().(ssh.CryptoPublicKey).CryptoPublicKey().(ed25519.PublicKey))
}

func TestSignersSign(t *testing.T) {
	k, err := Derive(secret, "job", "1")
	require.NoError(t, err)
	for name, s := range map[string]ssh.Signer{"user": k.User(), "host": k.Host("worker-0")} {
		require.Equal(t, ssh.KeyAlgoED25519, s.PublicKey().Type(), name)
		sig, err := s.Sign(rand.Reader, []byte("data"))
		require.NoError(t, err, name)
		require.NoError(t, s.PublicKey().Verify([]byte("data"), sig), name)
		require.Error(t, s.PublicKey().Verify([]byte("other"), sig), name)
	}
}

// outputs returns everything that can be derived, by name.
func outputs(k *Keys, ids ...string) map[string]string {
	out := map[string]string{
		"gossip": hex.EncodeToString(k.Gossip()), "user": public(k.User()), "fingerprint": k.Fingerprint(),
	}
	for _, id := range ids {
		out["host "+id] = public(k.Host(id))
	}
	return out
}

// If one input differs, all outputs differ. No two outputs are equal.
func TestAllDiffer(t *testing.T) {
	ids := []string{"", "worker-1", "worker-2", "worker-11", "gossip", "/worker-1"}
	seen := map[string]string{}
	add := func(what string, k *Keys) {
		for name, v := range outputs(k, ids...) {
			who := what + ", " + name
			require.NotContains(t, seen, v, "%s is also %s", who, seen[v])
			seen[v] = who
		}
	}
	other := bytes.Clone(secret)
	other[31] ^= 1
	for what, in := range map[string]struct {
		secret       []byte
		job, attempt string
	}{
		"base":                  {secret, "ab", "1"},
		"other secret":          {other, "ab", "1"},
		"longer secret":         {append(bytes.Clone(secret), 0), "ab", "1"},
		"secret as insecure":    {[]byte(insecure), "ab", "1"},
		"other job":             {secret, "ac", "1"},
		"other attempt":         {secret, "ab", "2"},
		"no attempt":            {secret, "ab", ""},
		"names swapped":         {secret, "1", "ab"},
		"names shifted":         {secret, "a", "b1"},
		"names shifted by zero": {secret, "ab\x00", "1"},
		"short secret":          {secret[:31], "ab", "1"},
		"shorter secret":        {secret[:30], "ab", "1"},
		"short, other job":      {secret[:31], "ac", "1"},
		"short, other attempt":  {secret[:31], "ab", "2"},
		"short, names swapped":  {secret[:31], "1", "ab"},
	} {
		k, err := Derive(in.secret, in.job, in.attempt)
		require.NoError(t, err)
		add(what, k)
	}
	add("insecure", Insecure("ab", "1"))
	add("insecure, other job", Insecure("ac", "1"))
	add("insecure, other attempt", Insecure("ab", "2"))
}

// The label depends on job and attempt only. (Short secrets take too long here; TestKnownAnswers has some.)
func TestLabel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		some := rapid.SliceOfN(rapid.Byte(), longSecret, 64).Filter(func(s []byte) bool { return weakness(s) == "" })
		s1, s2 := some.Draw(t, "s1"), some.Draw(t, "s2")
		j1, j2 := rapid.String().Draw(t, "j1"), rapid.String().Draw(t, "j2")
		a1, a2 := rapid.String().Draw(t, "a1"), rapid.String().Draw(t, "a2")
		k1, err1 := Derive(s1, j1, a1)
		k2, err2 := Derive(s2, j2, a2)
		k3, err3 := Derive(s2, j1, a1)
		require.NoError(t, err1)
		require.NoError(t, err2)
		require.NoError(t, err3)
		require.Regexp(t, `^[0-9a-f]{16}$`, k1.Label())
		require.Regexp(t, `^[0-9a-f]{8}$`, k1.Fingerprint())
		require.Equal(t, k1.Label(), k3.Label())
		require.Equal(t, j1 == j2 && a1 == a2, k1.Label() == k2.Label())
		require.Equal(t, bytes.Equal(s1, s2), k1.Fingerprint() == k3.Fingerprint())
	})
}

// Printing, logging or encoding Keys or one of its signers shows no byte of a key.
func TestRedacted(t *testing.T) {
	k, err := Derive(secret, "canary-job", "canary-attempt")
	require.NoError(t, err)
	type holder struct {
		Public  *Keys
		private *Keys
		value   Keys
		User    ssh.Signer
		host    ssh.Signer
	}
	h := holder{k, k, *k, k.User(), k.Host("worker-0")}

	// Must not appear: each secret in hex, in Go's and in fmt's decimal list notation, and raw.
	var forbidden []string
	for _, b := range [][]byte{secret, k.Gossip(), k.derive("ssh-user", 32), k.derive("ssh-host/worker-0", 32)} {
		forbidden = append(forbidden, string(b), hex.EncodeToString(b[:6]), strings.ToUpper(hex.EncodeToString(b[:6])),
			strings.Trim(fmt.Sprintf("%d", b[:5]), "[]"), strings.Trim(fmt.Sprintf("%#v", b[:5]), "[]byte{}"),
			fmt.Sprintf("% x", b[:5]))
	}
	check := func(what, out string, whole bool) {
		t.Helper()
		if whole {
			require.Contains(t, out, "[redacted]", what)
		}
		for _, f := range forbidden {
			require.NotContains(t, out, f, what)
		}
	}
	for _, verb := range []string{
		"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "% x", "%d", "%o", "%b", "%c", "%U", "%e", "%t", "%p", "%w",
		"%20.3v",
	} {
		for name, x := range map[string]any{"keys": k, "value": *k, "user": k.User(), "host": k.Host("worker-0")} {
			out := fmt.Sprintf(verb, x)
			if verb != "%p" && verb != "%w" { // these two never call a method
				require.Equal(t, "[redacted]", out, "%s %s", name, verb)
			}
			check(name+" "+verb, out, false)
		}
		check("list "+verb, fmt.Sprintf(verb, []*Keys{k}), false)
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%d", "%x", "%q"} {
		check("holder "+verb, fmt.Sprintf(verb, h), true) // with a verb that does not fit, fmt follows pointers
		check("holder "+verb, fmt.Sprintf(verb, &h), true)
	}
	require.Equal(t, "[redacted]", k.String())
	for name, x := range map[string]any{
		"keys": k, "value": *k, "user": k.User(), "holder": h, "map": map[string]any{"k": *k},
	} {
		out, err := json.Marshal(x)
		require.NoError(t, err)
		check("json "+name, string(out), true)
	}
	for name, handler := range map[string]func(*bytes.Buffer) slog.Handler{
		"text": func(b *bytes.Buffer) slog.Handler { return slog.NewTextHandler(b, nil) },
		"json": func(b *bytes.Buffer) slog.Handler { return slog.NewJSONHandler(b, nil) },
	} {
		var b bytes.Buffer
		slog.New(handler(&b)).Info("keys", "k", k, "v", *k, "user", k.User(), "holder", h)
		check("slog "+name, b.String(), true)
	}
}

// BenchmarkDerive measures the lengths on both sides of the limit, and the length of 32 bytes in base64.
func BenchmarkDerive(b *testing.B) {
	text := append(bytes.Clone(secret), " and some more"...)
	for _, n := range []int{16, 31, 32, 44} {
		b.Run(fmt.Sprintf("%d bytes", n), func(b *testing.B) {
			for b.Loop() {
				k, err := Derive(text[:n], "user~train", "0")
				require.NoError(b, err)
				k.Gossip()
				k.User()
				k.Host("worker-2")
			}
		})
	}
}
