// Package hostfile writes and reads MPI host lists.
//
// Every launcher has its own grammar, and fails on the others' grammars: Open MPI rejects "name:2", MPICH rejects "name
// slots=2", horovodrun crashes on a blank line. The package writes only what every version of a launcher reads alike:
// one line per host, LF line ends, ASCII names, no comments, no options.
//
// It refuses what a launcher would misread: names with odd characters, words that a grammar reserves, counts below one,
// the same host twice, an empty list (hydra reads an empty file as "run everything here").
package hostfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

const (
	maxSize  = 4 << 20 // bytes that Parse reads; ten thousand hosts with the longest names of DNS need less
	maxName  = 253     // bytes of a host name (RFC 1035, section 2.3.4, without the root's dot)
	maxSlots = 1 << 20 // far below the limit of the 32-bit integers that launchers use
)

// Dialect names the grammar of one launcher's host list. The values are those of `paiinit hostfile --format`.
type Dialect string

// The dialects.
const (
	// OpenMPI is "name slots=n", read by mpirun of Open MPI 4 and 5.
	OpenMPI Dialect = "openmpi"
	// Hydra is "name:n", read by mpiexec of MPICH (-f) and of Intel MPI (-machinefile).
	Hydra Dialect = "hydra"
	// Horovod is "name slots=n" and nothing else: horovodrun splits every line at the first "=".
	Horovod Dialect = "horovod"
	// DeepSpeed is "name slots=n"; blank lines and comments are allowed.
	DeepSpeed Dialect = "deepspeed"
)

// Host is one line of a host list.
type Host struct {
	Name  string // the launcher passes it to its remote-shell agent
	Slots int    // the number of processes that the launcher may start there
}

// Write writes hosts in the grammar of d, or nothing if d cannot express them. It leaves out hosts with 0 slots: no
// launcher has a line that means "none" (Open MPI says that all nodes are filled, MPICH exits without a message).
func Write(w io.Writer, d Dialect, hosts []Host) error {
	g, err := grammarOf(d)
	if err != nil {
		return err
	}
	var buf bytes.Buffer
	seen := make(map[string]bool, len(hosts))
	for _, h := range hosts {
		if h.Slots == 0 {
			continue
		}
		if err := g.check(h, seen); err != nil {
			return fmt.Errorf("writing %s host list: %w", d, err)
		}
		buf.WriteString(h.Name + g.sep + strconv.Itoa(h.Slots) + "\n")
	}
	if buf.Len() == 0 {
		return fmt.Errorf("writing %s host list: no host with slots", d)
	}
	if _, err := w.Write(buf.Bytes()); err != nil {
		return fmt.Errorf("writing %s host list: %w", d, err)
	}
	return nil
}

// Parse reads a host list in the grammar of d.
//
// It reads what [Write] writes and, where the launcher does, comments, blank lines, a missing line end at the end,
// MPICH's "name" for one slot, and Open MPI's spellings of slots= and max_slots= (it drops the latter). It refuses what
// a [Host] cannot hold (port=, user=, "user@host", "^host") and, for Open MPI, a host without a count: mpirun would use
// that host's number of cores, which the file does not tell.
func Parse(r io.Reader, d Dialect) ([]Host, error) {
	g, err := grammarOf(d)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(r, maxSize+1))
	if err != nil {
		return nil, fmt.Errorf("reading %s host list: %w", d, err)
	}
	if len(data) > maxSize {
		return nil, fmt.Errorf("reading %s host list: larger than %d bytes", d, maxSize)
	}
	var hosts []Host
	seen := map[string]bool{}
	number := 0
	for line := range strings.Lines(string(data)) {
		number++
		h, ok, err := g.line(strings.TrimSuffix(line, "\n"))
		if err == nil && ok {
			err = g.check(h, seen)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		if ok {
			hosts = append(hosts, h)
		}
	}
	if len(hosts) == 0 {
		return nil, fmt.Errorf("reading %s host list: no hosts", d)
	}
	return hosts, nil
}

// ParseAny reads a host list in the dialect of Open MPI or, if it is none, of Hydra.
func ParseAny(text []byte) ([]Host, error) {
	hosts, err := Parse(bytes.NewReader(text), OpenMPI)
	if err != nil {
		return Parse(bytes.NewReader(text), Hydra)
	}
	return hosts, nil
}

// Check returns why a host list of this dialect cannot hold a name; nil if it can.
func Check(d Dialect, name string) error {
	g, err := grammarOf(d)
	if err != nil {
		return err
	}
	return g.check(Host{Name: name, Slots: 1}, map[string]bool{})
}

// grammar holds the differences between dialects. Blanks separate words.
type grammar struct {
	dialect  Dialect
	sep      string // between name and count
	comments string // what starts a comment; if nothing, comments and blank lines are errors
	extra    string // bytes of a name besides ASCII letters, digits, "-" and "."
	reserved string // words that the launcher's lexer does not read as a name
	numeric  bool   // the launcher passes a name of digits to the agent unchanged
	counts   string // keys of the number of slots
	maxima   string // keys that are read and dropped
}

func grammarOf(d Dialect) (grammar, error) {
	switch d {
	case OpenMPI:
		return grammar{
			dialect: d, sep: " slots=", comments: "# //", reserved: openMPIReserved,
			counts: openMPICounts, maxima: openMPIMaxima,
		}, nil
	case Hydra:
		return grammar{dialect: d, sep: ":", comments: "#", extra: "_", numeric: true}, nil
	case Horovod:
		return grammar{dialect: d, sep: " slots=", extra: "_", numeric: true, counts: "slots"}, nil
	case DeepSpeed:
		return grammar{dialect: d, sep: " slots=", comments: "#", extra: "_", numeric: true, counts: "slots"}, nil
	}
	return grammar{}, fmt.Errorf("unknown dialect %q: use %s, %s, %s or %s", string(d), OpenMPI, Hydra,
		Horovod, DeepSpeed)
}

const (
	openMPICounts = "slots slot count cpu"
	openMPIMaxima = "max_slots max-slots slots_max slots-max cpu_max cpu-max count_max count-max"
	// mpirun 4.1.4 refuses these words as a name; it reads "rank" as the number 1.
	openMPIReserved = openMPICounts + " " + openMPIMaxima + " port username user_name user-name rank " +
		"boards sockets cores sockets_per_board cores_per_socket"
)

func hasWord(words, word string) bool { return slices.Contains(strings.Fields(words), word) }

// line parses one line without its line end. ok is false if it has no host.
func (g grammar) line(line string) (h Host, ok bool, err error) {
	if strings.Contains(line, "\r") {
		return Host{}, false, errors.New("carriage return: line ends must be LF")
	}
	for comment := range strings.FieldsSeq(g.comments) {
		line, _, _ = strings.Cut(line, comment)
	}
	fields := strings.FieldsFunc(line, func(r rune) bool { return r == ' ' || r == '\t' })
	if len(fields) == 0 {
		if g.comments == "" {
			err = fmt.Errorf("blank line: %s stops reading there with an error", g.dialect)
		}
		return Host{}, false, err
	}
	if g.dialect == Hydra {
		return colonLine(fields)
	}
	h.Name = fields[0]
	counted := false
	for _, f := range fields[1:] {
		key, value, has := strings.Cut(f, "=")
		isCount := hasWord(g.counts, key)
		switch {
		case !has || !isCount && !hasWord(g.maxima, key):
			return Host{}, false, fmt.Errorf("%q: not understood, want NAME slots=N", f)
		case isCount && counted:
			return Host{}, false, fmt.Errorf("%q: the count is given twice", f)
		}
		n, err := count(value)
		if err != nil {
			return Host{}, false, fmt.Errorf("%s=%s: %w", key, value, err)
		}
		if isCount {
			h.Slots, counted = n, true
		}
	}
	if !counted {
		return Host{}, false, fmt.Errorf("%q has no slots=N", h.Name)
	}
	return h, true, nil
}

// colonLine parses the fields of a line "name" or "name:n".
func colonLine(fields []string) (Host, bool, error) {
	if len(fields) > 1 {
		return Host{}, false, fmt.Errorf("%q: not understood, want NAME:N", fields[1])
	}
	name, value, has := strings.Cut(fields[0], ":")
	if !has {
		return Host{Name: name, Slots: 1}, true, nil
	}
	n, err := count(value)
	if err != nil {
		return Host{}, false, fmt.Errorf("%s:%s: %w", name, value, err)
	}
	return Host{Name: name, Slots: n}, true, nil
}

// count parses a number of slots. It refuses signs and leading zeros, on which launchers disagree.
func count(s string) (int, error) {
	n, err := strconv.Atoi(s)
	switch {
	case s == "" || !isNumber(s):
		return 0, errors.New("not a number")
	case err != nil || n > maxSlots:
		return 0, fmt.Errorf("more than %d", maxSlots)
	case n < 1:
		return 0, errors.New("less than 1")
	case s[0] == '0':
		return 0, errors.New("leading zero")
	}
	return n, nil
}

// isNumber reports whether a text has digits only.
func isNumber(s string) bool { return strings.Trim(s, "0123456789") == "" }

// check refuses a host that the dialect cannot hold, and adds its name to seen.
func (g grammar) check(h Host, seen map[string]bool) error {
	if err := g.name(h.Name); err != nil {
		return fmt.Errorf("host %q: %w", h.Name, err)
	}
	key := strings.ToLower(h.Name) // host names are case-insensitive (RFC 4343): "A" and "a" are one machine
	switch {
	case h.Slots < 1:
		return fmt.Errorf("host %q: %d slots: less than 1", h.Name, h.Slots)
	case h.Slots > maxSlots:
		return fmt.Errorf("host %q: %d slots: more than %d", h.Name, h.Slots, maxSlots)
	case seen[key]:
		return fmt.Errorf("host %q: given twice", h.Name)
	}
	seen[key] = true
	return nil
}

func (g grammar) name(s string) error {
	if s == "" {
		return errors.New("empty name")
	}
	if len(s) > maxName {
		return fmt.Errorf("name longer than %d bytes", maxName)
	}
	for i, c := range []byte(s) {
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !alnum && c != '-' && c != '.' && !strings.Contains(g.extra, string(rune(c))) {
			return fmt.Errorf("a name in the %s host list cannot hold %q", g.dialect, c)
		}
		// A leading "-" would be an option of the remote-shell agent. Open MPI removes a dot at either end.
		if !alnum && (i == 0 || i == len(s)-1) {
			return fmt.Errorf("a name must begin and end with a letter or digit, not %q", c)
		}
	}
	if isNumber(s) && !g.numeric {
		return fmt.Errorf("a name in the %s host list cannot be a number", g.dialect)
	}
	if hasWord(g.reserved, s) {
		return fmt.Errorf("the %s host list grammar reserves this word", g.dialect)
	}
	return nil
}
