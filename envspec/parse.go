package envspec

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// hostPort is where a container listens. Port 0 means that none is given.
type hostPort struct {
	host string
	port int
}

// Forms are checked by hand: every start of the program, even of a remote shell, would compile regular expressions.

// consistsOf says whether s is not empty and has only ASCII letters, digits and bytes of others.
func consistsOf(s, others string) bool {
	for i := range len(s) {
		letter := 'a' <= s[i] && s[i] <= 'z' || 'A' <= s[i] && s[i] <= 'Z'
		if !letter && !isDigit(s[i]) && strings.IndexByte(others, s[i]) < 0 {
			return false
		}
	}
	return s != ""
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// isHostName says whether s has the form of a host name, without dot or dash at its ends.
func isHostName(s string) bool { return consistsOf(s, "_.-") && s == strings.Trim(s, ".-") }

// isNumeric says whether s consists of digits and dots.
func isNumeric(s string) bool { return s != "" && strings.Trim(s, "0123456789.") == "" }

// isRoleName says whether s has the form of a role, without a dash at its beginning.
func isRoleName(s string) bool { return consistsOf(s, "._~-") && s[0] != '-' }

const maxHostName = 253 // bytes, of a name in text form (RFC 1035, section 2.3.4)

// checkHost returns what is wrong with a host, or "". It refuses digits and dots that are no address: resolvers read
// 010.0.0.4 as octal and 10.0.4 as 10.0.0.4.
func checkHost(host string) string {
	if _, err := netip.ParseAddr(host); err == nil {
		return ""
	}
	switch {
	case host == "":
		return "an item has no host"
	case isNumeric(host):
		return quote(host) + " is not an IP address"
	case len(host) > maxHostName, !isHostName(host):
		return quote(host) + " is neither a host name nor an IP address"
	}
	return ""
}

// parsePort returns a port, or what is wrong with s.
func parsePort(s string) (int, string) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return 0, "port " + quotePlain(s) + " is not in 1..65535"
	}
	return int(n), ""
}

// quotePlain quotes s unless it is a number.
func quotePlain(s string) string {
	if s != "" && len(s) < 20 && isNumeric(s) {
		return s
	}
	return quote(s)
}

// parseHostPort reads host, host:port, [v6], [v6]:port or a bare v6 address. The problem is "" if s is well-formed.
func parseHostPort(s string) (hp hostPort, problem string) {
	host, port, hasPort := s, "", false
	switch {
	case strings.HasPrefix(s, "["):
		inside, rest, ok := strings.Cut(s[1:], "]")
		if addr, err := netip.ParseAddr(inside); !ok || err != nil || !addr.Is6() {
			return hp, quote(s) + " is not an IPv6 address in brackets"
		}
		host = inside
		if rest != "" {
			port, hasPort = strings.CutPrefix(rest, ":")
			if !hasPort {
				return hp, quote(s) + " has something other than a port after the bracket"
			}
		}
	case strings.Count(s, ":") > 1:
		if _, err := netip.ParseAddr(s); err != nil {
			return hp, quote(s) + " is not host:port (an IPv6 address with a port needs brackets)"
		}
	default:
		host, port, hasPort = strings.Cut(s, ":")
	}
	if problem = checkHost(host); problem != "" {
		return hp, problem
	}
	hp.host = host
	if hasPort {
		hp.port, problem = parsePort(port)
	}
	return hp, problem
}

// place is parseHostPort for a part of the value of v.
func (r *reader) place(v variable, text string) hostPort {
	hp, problem := parseHostPort(text)
	r.check(v, problem)
	return hp
}

// check refuses v if a part of its value has a problem.
func (r *reader) check(v variable, problem string) {
	if problem != "" {
		panic(r.wrong(v, "", "%s", problem))
	}
}

// items splits a list and trims its items. Empty items at the end cause a warning; elsewhere they are an error, because
// they would shift the items after them.
func (r *reader) items(v variable, sep string) []string {
	list := strings.Split(v.value, sep)
	for i := range list {
		list[i] = clean(list[i])
	}
	n := len(list)
	for n > 0 && list[n-1] == "" {
		n--
	}
	if n < len(list) {
		r.warn("%s=%s ends with %q", v.name, quote(v.value), sep)
	}
	list = list[:n]
	if len(list) == 0 {
		panic(r.bad(v, "", "has no items"))
	}
	if len(list) > maxTasks {
		panic(r.bad(v, "", "has %d items, more than %d", len(list), maxTasks))
	}
	if i := slices.Index(list, ""); i >= 0 {
		panic(r.wrong(v, "", "item %d of %d is empty", i+1, len(list)))
	}
	return list
}

// splitAlias splits "role-index" at the last dash.
func splitAlias(s string) (role string, index int, ok bool) {
	i := strings.LastIndexByte(s, '-')
	if i < 1 || !isRoleName(s[:i]) {
		return "", 0, false
	}
	n, err := strconv.ParseUint(s[i+1:], 10, 31)
	if err != nil || n >= maxTasks || strconv.FormatUint(n, 10) != s[i+1:] {
		return "", 0, false
	}
	return s[:i], int(n), true
}

func alias(role string, index int) string { return role + "-" + strconv.Itoa(index) }

// lettersAndDigits returns the ASCII letters, in lower case, and digits of name.
func lettersAndDigits(name string) string {
	return strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' {
			return c
		}
		return -1
	}, strings.ToLower(name))
}
