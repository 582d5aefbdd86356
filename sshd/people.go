package sshd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"
)

// maxPeopleFile bounds the size of Config.AuthorizedKeys. 1 MiB holds ten thousand keys.
const maxPeopleFile = 1 << 20

// person is one line of an authorized_keys file: a key outside of the job, and what it may do.
type person struct {
	line    int
	name    string // the comment after the key, or "line N"
	key     string // wire encoding
	from    []pattern
	expires time.Time // zero: never
	command string    // runs instead of the client's request; "": the request runs
	pty     bool
}

// mayLogIn returns why the person may not log in from an address at a time; nil if they may.
func (p *person) mayLogIn(from netip.Addr, now time.Time) error {
	if !p.expires.IsZero() && !now.Before(p.expires) {
		return fmt.Errorf("the key of %s expired at %s", p.name, p.expires.Format(time.RFC3339))
	}
	if p.from != nil && !matches(p.from, from) {
		return fmt.Errorf("the key of %s may not be used from %s", p.name, from)
	}
	return nil
}

// pattern is one item of from="...": an address, a network, or a text with * and ?.
type pattern struct {
	not     bool
	network netip.Prefix // if it is invalid, text counts
	text    string
}

// matches follows PATTERNS in ssh_config(5): a negated match refuses, even if others match.
func matches(list []pattern, a netip.Addr) bool {
	found := false
	for _, p := range list {
		ok := p.network.Contains(a)
		if !p.network.IsValid() {
			ok, _ = path.Match(p.text, a.String())
		}
		switch {
		case ok && p.not:
			return false
		case ok:
			found = true
		}
	}
	return found
}

// parsePatterns reads the list of from="...". It refuses host names, for which it would have to trust a DNS server.
func parsePatterns(list string) ([]pattern, error) {
	var patterns []pattern
	for text := range strings.SplitSeq(list, ",") {
		p := pattern{}
		p.text, p.not = strings.CutPrefix(text, "!")
		if a, err := netip.ParseAddr(p.text); err == nil && a.Zone() == "" {
			p.network = netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen())
		} else if n, err := netip.ParsePrefix(p.text); err == nil {
			if p.network = n; n.Masked() != n {
				return nil, fmt.Errorf("from=%q: %s has bits outside of its mask", list, n)
			}
		} else if p.text == "" || strings.Trim(p.text, "0123456789abcdef.:*?") != "" ||
			!strings.ContainsAny(p.text, "*?") {
			return nil, fmt.Errorf("from=%q: %q is not an address, a network or a pattern of addresses", list, text)
		}
		patterns = append(patterns, p)
	}
	return patterns, nil
}

// A skipped line of an authorized_keys file has no effect.
type skipped struct {
	line   int
	reason error
}

// parsePeople reads the lines of an authorized_keys file (sshd(8), AUTHORIZED_KEYS FILE FORMAT). It skips a line that
// it does not understand in full: an unknown option may be a restriction.
func parsePeople(text []byte) (list []*person, bad []skipped) {
	n := 0
	for line := range bytes.Lines(text) {
		n++
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		p, err := parsePerson(line)
		if err != nil {
			bad = append(bad, skipped{n, err})
			continue
		}
		p.line = n
		if p.name == "" {
			p.name = fmt.Sprintf("line %d", n)
		}
		list = append(list, p)
	}
	return list, bad
}

func parsePerson(line []byte) (*person, error) {
	key, comment, options, _, err := ssh.ParseAuthorizedKey(line)
	if err != nil {
		return nil, errors.New("not a public key with readable options")
	}
	if !slices.Contains(userKeyTypes(), key.Type()) {
		return nil, fmt.Errorf("keys of type %s cannot log in", key.Type())
	}
	p := &person{name: cut(strings.ToValidUTF8(comment, "?"), 64), key: string(key.Marshal()), pty: true}
	for _, option := range options {
		if err := p.option(option); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// userKeyTypes returns the formats of keys whose signatures config accepts.
func userKeyTypes() []string {
	return []string{ssh.KeyAlgoED25519, ssh.KeyAlgoSKED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384,
		ssh.KeyAlgoECDSA521, ssh.KeyAlgoSKECDSA256, ssh.KeyAlgoRSA}
}

// option applies one option. Restrictions of features that the server lacks (forwarding, ~/.ssh/rc) need no code.
func (p *person) option(option string) error {
	name, value, hasValue := strings.Cut(option, "=")
	if hasValue {
		if len(value) < 2 || value[0] != '"' || value[len(value)-1] != '"' {
			return fmt.Errorf("option %s: the value is not quoted", cut(option, 64))
		}
		value = strings.ReplaceAll(value[1:len(value)-1], `\"`, `"`)
	}
	var err error
	switch name = strings.ToLower(name); {
	case name == "from" && hasValue && p.from == nil:
		p.from, err = parsePatterns(value)
	case name == "expiry-time" && hasValue && p.expires.IsZero():
		p.expires, err = parseExpiry(value)
	case name == "command" && hasValue && p.command == "" && value != "" && !strings.Contains(value, "\x00"):
		p.command = value
		if strings.HasPrefix(value, internalSFTP+" ") {
			err = fmt.Errorf("option command=%q: options of %s are not supported", cut(value, 64), internalSFTP)
		}
	case (name == "restrict" || name == "no-pty") && !hasValue:
		p.pty = false
	case name == "pty" && !hasValue:
		p.pty = true
	case (name == "permitopen" || name == "permitlisten") && hasValue:
	case !hasValue && (name == "no-port-forwarding" || name == "no-agent-forwarding" ||
		name == "no-x11-forwarding" || name == "no-user-rc"):
	default:
		err = fmt.Errorf("option %s is not supported, or occurs twice", cut(option, 64))
	}
	return err
}

// parseExpiry reads YYYYMMDD, YYYYMMDDHHMM or YYYYMMDDHHMMSS, in this container's time zone or, with a Z, in UTC.
func parseExpiry(value string) (time.Time, error) {
	text, utc := strings.CutSuffix(value, "Z")
	zone := time.Local
	if utc {
		zone = time.UTC
	}
	for _, layout := range []string{"20060102", "200601021504", "20060102150405"} {
		if t, err := time.ParseInLocation(layout, text, zone); err == nil && len(text) == len(layout) {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("option expiry-time=%q: want YYYYMMDD or YYYYMMDDHHMM[SS], with a Z for UTC",
		cut(value, 32))
}

// people holds the keys of Config.AuthorizedKeys, as the file has them now.
type people struct {
	file string
	log  *slog.Logger

	mu    sync.Mutex
	stamp stamp
	ok    bool // the file could be read
	said  bool // the lack of Landlock was logged
	list  []*person
}

// stamp tells whether a file changed.
type stamp struct {
	dev, inode uint64
	size       int64
	changed    syscall.Timespec
}

// refresh reads the file if it changed. If it cannot be read, no person can log in.
func (p *people) refresh() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var now stamp
	info, err := os.Stat(p.file)
	if err == nil {
		st := info.Sys().(*syscall.Stat_t) // always, on Linux
		now = stamp{st.Dev, st.Ino, st.Size, st.Ctim}
	}
	if now == p.stamp && p.ok {
		return nil
	}
	was := p.ok
	p.stamp, p.list = now, nil
	if err == nil {
		err = p.read(info)
	}
	if p.ok = err == nil; p.ok {
		return nil
	}
	err = fmt.Errorf("reading the keys of people: %w", err)
	if was {
		p.log.Error("no person can log in", "err", err)
	}
	return err
}

func (p *people) read(info os.FileInfo) error {
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a file", p.file)
	}
	if mode := info.Mode().Perm(); mode&0o022 != 0 {
		return fmt.Errorf("%s is writable by its group or by others (mode %04o)", p.file, mode)
	}
	f, err := os.Open(p.file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxPeopleFile+1))
	if err != nil {
		return err
	}
	if len(text) > maxPeopleFile {
		return fmt.Errorf("%s has more than %d bytes", p.file, maxPeopleFile)
	}
	list, bad := parsePeople(text)
	for _, b := range bad {
		p.log.Warn("ssh authorized key skipped", "file", p.file, "line", b.line, "reason", b.reason.Error())
	}
	p.list = list
	if !p.said && landlockVersion() == 0 &&
		slices.ContainsFunc(list, func(line *person) bool { return line.command == internalSFTP }) {
		p.said = true
		p.log.Info("this kernel has no Landlock: only path checks confine keys with internal-sftp")
	}
	p.log.Info("ssh authorized keys read", "file", p.file, "keys", len(list), "skipped", len(bad))
	return nil
}

// find returns the first line with the key that permits a login from an address; else the last line's reason against
// it.
func (p *people) find(key ssh.PublicKey, from netip.Addr, now time.Time) (*person, error) {
	if err := p.refresh(); err != nil {
		return nil, errUnknownKey
	}
	p.mu.Lock()
	list := p.list
	p.mu.Unlock()
	wire, err := string(key.Marshal()), errUnknownKey
	for _, line := range list {
		if line.key == wire {
			if err = line.mayLogIn(from, now); err == nil {
				return line, nil
			}
		}
	}
	return nil, err
}

var errUnknownKey = errors.New("the key is not authorized")
