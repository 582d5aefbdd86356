package sshd

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
)

func newPublicKey(t testing.TB) ssh.PublicKey {
	t.Helper()
	public, _, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	key, err := ssh.NewPublicKey(public)
	require.NoError(t, err)
	return key
}

func keyLine(key ssh.PublicKey) string {
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key)))
}

func TestParsePeople(t *testing.T) {
	key := keyLine(newPublicKey(t))
	for options, reason := range map[string]string{
		"":                                      "",
		"restrict ":                             "",
		"RESTRICT,Pty ":                         "",
		`from="10.0.0.0/8,!10.1.*,::1,fe80:?" `: "",
		`command="echo \"a,b\" c",no-pty `:      "",
		`command="internal-sftp" `:              "",
		`expiry-time="20300101" `:               "",
		`expiry-time="203001011200Z" `:          "",
		`expiry-time="20300101120059" `:         "",
		`no-port-forwarding,no-agent-forwarding,no-X11-forwarding,no-user-rc,permitopen="a:1",permitlisten="2" `: "",

		`environment="A=1" `:          "not supported",
		`cert-authority `:             "not supported",
		`principals="root" `:          "not supported",
		`agent-forwarding `:           "not supported",
		`port-forwarding `:            "not supported",
		`tunnel="0" `:                 "not supported",
		`no-touch-required `:          "not supported",
		`verify-required `:            "not supported",
		`nonsense `:                   "not supported",
		`restrict="yes" `:             "not supported",
		`command `:                    "not supported",
		`command="" `:                 "not supported",
		`command="a",command="b" `:    "occurs twice",
		`command="internal-sftp -R" `: "options of internal-sftp are not supported",
		`from="host.example.com" `:    "not an address",
		`from="*.example.com" `:       "not an address",
		`from="10.0.0.1/8" `:          "bits outside of its mask",
		`from="" `:                    "not an address",
		`from="10.0.0.1,,10.0.0.2" `:  "not an address",
		`from="10.0.0.1",from="::1" `: "occurs twice",
		`from=10.0.0.1 `:              "not quoted",
		`expiry-time="tomorrow" `:     "want YYYYMMDD",
		`expiry-time="2030010112" `:   "want YYYYMMDD",
		`expiry-time="20301301" `:     "want YYYYMMDD",
		`expiry-time="20300101ZZ" `:   "want YYYYMMDD",
		`command="no end `:            "not a public key",
		`ssh-ed25519 AAAA `:           "not a public key",
	} {
		text := "# a comment\n\n" + options + key + " somebody@home"
		list, bad := parsePeople([]byte(text + "\r\n"))
		if reason == "" {
			require.Empty(t, bad, options)
			require.Len(t, list, 1, options)
			require.Equal(t, "somebody@home", list[0].name)
			require.Equal(t, 3, list[0].line)
			continue
		}
		require.Empty(t, list, options)
		require.Len(t, bad, 1, options)
		require.Equal(t, 3, bad[0].line)
		require.ErrorContains(t, bad[0].reason, reason, options)
	}
	list, _ := parsePeople([]byte(key + "\nrestrict " + key + "\n" + `command="echo \"a,b\" c",pty ` + key + "\n"))
	require.Len(t, list, 3)
	require.Equal(t, "line 1", list[0].name)
	require.Equal(t, []bool{true, false, true}, []bool{list[0].pty, list[1].pty, list[2].pty})
	require.Equal(t, `echo "a,b" c`, list[2].command)
}

func TestCertificatesAndOldKeysAreNoPeople(t *testing.T) {
	key := newPublicKey(t)
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	signer, err := ssh.NewSignerFromKey(private)
	require.NoError(t, err)
	cert := &ssh.Certificate{Key: key, CertType: ssh.UserCert, ValidBefore: ssh.CertTimeInfinity}
	require.NoError(t, cert.SignCert(rand.Reader, signer))
	_, bad := parsePeople([]byte(keyLine(cert)))
	require.Len(t, bad, 1)
	require.ErrorContains(t, bad[0].reason, "keys of type ssh-ed25519-cert-v01@openssh.com cannot log in")
}

func TestFrom(t *testing.T) {
	for _, row := range []struct {
		list, addr string
		want       bool
	}{
		{"10.0.0.1", "10.0.0.1", true},
		{"10.0.0.1", "10.0.0.2", false},
		{"10.0.0.0/8", "10.200.3.4", true},
		{"10.0.0.0/8,!10.1.0.0/16", "10.1.0.1", false},
		{"!10.1.0.0/16,10.0.0.0/8", "10.2.0.1", true},
		{"!10.1.0.1", "10.2.0.1", false}, // a negated match permits no address
		{"192.168.*", "192.168.7.7", true},
		{"192.168.0.?", "192.168.0.10", false},
		{"*", "::1", true},
		{"::ffff:10.0.0.1", "10.0.0.1", true},
		{"2001:db8::/32", "2001:db8::5", true},
		{"2001:db8::/32", "10.0.0.1", false},
	} {
		patterns, err := parsePatterns(row.list)
		require.NoError(t, err, row.list)
		require.Equal(t, row.want, matches(patterns, netip.MustParseAddr(row.addr)), "%s: %s", row.list, row.addr)
	}
	patterns, err := parsePatterns("10.0.0.0/8")
	require.NoError(t, err)
	require.False(t, matches(patterns, netip.Addr{}), "not TCP")
}

func TestExpiry(t *testing.T) {
	zone := time.FixedZone("there", 2*3600)
	local := time.Local
	time.Local = zone
	defer func() { time.Local = local }()
	for text, want := range map[string]string{
		"20300102": "2030-01-02T00:00:00+02:00", "20300102Z": "2030-01-02T00:00:00Z",
		"203001020304": "2030-01-02T03:04:00+02:00", "20300102030405Z": "2030-01-02T03:04:05Z",
	} {
		got, err := parseExpiry(text)
		require.NoError(t, err)
		require.Equal(t, want, got.Format(time.RFC3339))
		p := person{expires: got, name: "x"}
		require.NoError(t, p.mayLogIn(netip.Addr{}, got.Add(-time.Second)))
		require.ErrorContains(t, p.mayLogIn(netip.Addr{}, got), "expired at "+want)
	}
}

// The file changes while the server runs: its current content counts.
func TestPeopleAreReadAgain(t *testing.T) {
	one, two := newPublicKey(t), newPublicKey(t)
	file := filepath.Join(t.TempDir(), "keys")
	var log bytes.Buffer
	p := &people{file: file, log: slog.New(slog.NewTextHandler(&log, nil))}
	require.ErrorContains(t, p.refresh(), "reading the keys of people")
	may := func(key ssh.PublicKey) bool {
		_, err := p.find(key, netip.MustParseAddr("10.0.0.1"), time.Now())
		return err == nil
	}
	require.False(t, may(one))
	require.NoError(t, os.WriteFile(file, []byte(keyLine(one)+" a\n"), 0o644))
	require.True(t, may(one))
	require.False(t, may(two))
	require.True(t, may(one))
	require.Equal(t, 1, strings.Count(log.String(), "keys read"), log.String())

	next := file + ".next"
	require.NoError(t, os.WriteFile(next, []byte("environment=\"A=1\" "+keyLine(one)+"\n"+keyLine(two)+"\n"), 0o644))
	require.NoError(t, os.Rename(next, file))
	require.False(t, may(one))
	require.True(t, may(two))
	require.Contains(t, log.String(),
		`msg="ssh authorized key skipped" file=`+file+` line=1 reason="option environment=\"A=1\" is not supported, `+
			`or occurs twice"`,
	)

	require.NoError(t, os.Chmod(file, 0o666))
	require.False(t, may(two), "any user could have written it")
	require.False(t, may(two))
	require.Equal(t, 1, strings.Count(log.String(), "no person can log in"), log.String())
	require.Contains(t, log.String(), "mode 0666")
	require.NoError(t, os.Chmod(file, 0o600))
	require.True(t, may(two))
	require.NoError(t, os.Remove(file))
	require.False(t, may(two))
	require.NoError(t, os.WriteFile(file, bytes.Repeat([]byte("#\n"), maxPeopleFile), 0o600))
	require.ErrorContains(t, p.refresh(), "more than 1048576 bytes")
	require.NoError(t, os.Remove(file))
	require.NoError(t, os.Mkdir(file, 0o700))
	require.ErrorContains(t, p.refresh(), "is not a file")
}

func TestFirstLineThatAdmitsCounts(t *testing.T) {
	key := keyLine(newPublicKey(t))
	list, bad := parsePeople(
		[]byte(
			fmt.Sprintf("from=\"10.0.0.1\" %s inside\nexpiry-time=\"20000101\" %[1]s old\nrestrict %[1]s outside\n",
				key),
		),
	)
	require.Empty(t, bad)
	public, _, _, _, err := ssh.ParseAuthorizedKey([]byte(key))
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "keys")
	require.NoError(t, os.WriteFile(file, []byte("x"), 0o600))
	p := &people{file: file, log: slog.New(slog.DiscardHandler)}
	require.NoError(t, p.refresh())
	p.list = list
	for addr, want := range map[string]string{"10.0.0.1": "inside", "10.0.0.2": "outside"} {
		got, err := p.find(public, netip.MustParseAddr(addr), time.Now())
		require.NoError(t, err)
		require.Equal(t, want, got.name)
	}
	p.list = list[:2]
	_, err = p.find(public, netip.MustParseAddr("10.0.0.2"), time.Now())
	require.ErrorContains(t, err, "the key of old expired at 2000-01-01")
}

func FuzzParsePeople(f *testing.F) {
	key := keyLine(newPublicKey(f))
	f.Add([]byte("# c\n" + key + " a b\n"))
	f.Add([]byte(`from="10.*,!::1/128",command="x \" y",restrict,pty,expiry-time="20300101Z" ` + key))
	f.Fuzz(func(t *testing.T, text []byte) {
		list, bad := parsePeople(text)
		if lines := bytes.Count(text, []byte("\n")) + 1; len(list)+len(bad) > lines {
			t.Fatalf("%d keys and %d skipped lines of %d", len(list), len(bad), lines)
		}
		for _, p := range list {
			if p.key == "" || p.name == "" || p.line < 1 || strings.Contains(p.command, "\x00") {
				t.Fatalf("%+v", p)
			}
			_ = p.mayLogIn(netip.IPv6Unspecified(), time.Unix(0, 0))
		}
	})
}

func FuzzParseSubsystem(f *testing.F) {
	f.Add(ssh.Marshal(struct{ S string }{"sftp"}))
	f.Fuzz(func(t *testing.T, payload []byte) {
		if name, err := parseText("subsystem", payload); err == nil && len(name)+4 != len(payload) {
			t.Fatalf("%q", name)
		}
	})
}
