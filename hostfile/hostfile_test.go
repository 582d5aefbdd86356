package hostfile

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var dialects = []Dialect{OpenMPI, Hydra, Horovod, DeepSpeed}

func TestWriteGolden(t *testing.T) {
	hosts := []Host{
		{"master-0", 0}, // it only launches: no list has it
		{"worker-0", 4},
		{"worker-1", 1},
		{"10.151.40.211", 8},
		{"gpu.example.org", 16},
		{"3f2a9c0d1e4b", 1048576},
	}
	for _, d := range dialects {
		t.Run(string(d), func(t *testing.T) {
			var got bytes.Buffer
			if err := Write(&got, d, hosts); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", string(d)+".golden")
			if *update {
				if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			back, err := Parse(&got, d)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(hosts[1:], back); diff != "" {
				t.Errorf("read back, -want +got:\n%s", diff)
			}
		})
	}
}

func TestWriteRefuses(t *testing.T) {
	long := strings.Repeat("a", 254)
	tests := map[string]struct {
		hosts []Host
		only  []Dialect // nil: all
		want  string
	}{
		"nothing":    {nil, nil, "no host with slots"},
		"only zeros": {[]Host{{"a", 0}, {"b", 0}}, nil, "no host with slots"},
		"negative":   {[]Host{{"a", -1}}, nil, `host "a": -1 slots: less than 1`},
		"too many":   {[]Host{{"a", 1<<20 + 1}}, nil, `host "a": 1048577 slots: more than 1048576`},
		"twice":      {[]Host{{"a", 1}, {"b", 1}, {"a", 1}}, nil, `host "a": given twice`},
		"twice, other case": {[]Host{{"node-a", 1}, {"Node-A", 1}}, nil,
			`host "Node-A": given twice`},
		"empty name":     {[]Host{{"", 1}}, nil, `host "": empty name`},
		"long name":      {[]Host{{long, 1}}, nil, "name longer than 253 bytes"},
		"space":          {[]Host{{"a b", 1}}, nil, `cannot hold ' '`},
		"line end":       {[]Host{{"a\nb", 1}}, nil, `cannot hold '\n'`},
		"colon":          {[]Host{{"::1", 1}}, nil, `cannot hold ':'`},
		"user":           {[]Host{{"root@a", 1}}, nil, `cannot hold '@'`},
		"tilde":          {[]Host{{"ps~1", 1}}, nil, `cannot hold '~'`},
		"not ASCII":      {[]Host{{"knötchen", 1}}, nil, `cannot hold 'Ã'`},
		"exclusion":      {[]Host{{"^a", 1}}, nil, `cannot hold '^'`},
		"comment":        {[]Host{{"a#b", 1}}, nil, `cannot hold '#'`},
		"option":         {[]Host{{"-oProxyCommand", 1}}, nil, "must begin and end with a letter or digit"},
		"dot at the end": {[]Host{{"a.", 1}}, nil, "must begin and end with a letter or digit"},
		"underscore": {
			[]Host{{"taskrole_1-0", 1}},
			[]Dialect{OpenMPI},
			`a name in the openmpi host list cannot hold '_'`,
		},
		"number":        {[]Host{{"123456789012", 1}}, []Dialect{OpenMPI}, "cannot be a number"},
		"word of lexer": {[]Host{{"port", 1}}, []Dialect{OpenMPI}, "host list grammar reserves this word"},
		"word of lexer 2": {
			[]Host{{"max-slots", 1}}, []Dialect{OpenMPI}, "the openmpi host list grammar reserves this",
		},
	}
	for name, tt := range tests {
		for _, d := range dialects {
			t.Run(name+"/"+string(d), func(t *testing.T) {
				var buf bytes.Buffer
				err := Write(&buf, d, tt.hosts)
				if tt.only != nil && !contains(tt.only, d) {
					if err != nil {
						t.Fatalf("refused: %v", err)
					}
					return
				}
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Fatalf("error %v, want %q", err, tt.want)
				}
				if buf.Len() > 0 {
					t.Errorf("wrote %q before it failed", buf.String())
				}
			})
		}
	}
}

func contains(ds []Dialect, d Dialect) bool {
	for _, x := range ds {
		if x == d {
			return true
		}
	}
	return false
}

func TestParse(t *testing.T) {
	tests := map[string]struct {
		dialect Dialect
		text    string
		want    []Host
		err     string
	}{
		"openmpi, all that mpirun reads": {
			OpenMPI,
			"# made by hand\n\nworker-0 slots=4\n  worker-1\tslots=2 max_slots=4 # two\n// none\nworker-2 " +
				"max-slots=3 cpu=1\nworker-3 count=9 // nine",
			[]Host{{"worker-0", 4}, {"worker-1", 2}, {"worker-2", 1}, {"worker-3", 9}},
			"",
		},
		"hydra, all that mpiexec reads": {
			Hydra,
			"# list\nworker-0:4\n\nworker_1\n worker-2:2 # two",
			[]Host{{"worker-0", 4}, {"worker_1", 1}, {"worker-2", 2}},
			"",
		},
		"horovod":                        {Horovod, "a slots=1\nb slots=2\n", []Host{{"a", 1}, {"b", 2}}, ""},
		"deepspeed, comments and blanks": {DeepSpeed, "#x\n\na slots=1\n", []Host{{"a", 1}}, ""},

		"unknown dialect": {
			"slurm",
			"a\n",
			nil,
			`unknown dialect "slurm": use openmpi, hydra, horovod or deepspeed`,
		},
		"empty":             {OpenMPI, "", nil, "reading openmpi host list: no hosts"},
		"only comments":     {DeepSpeed, "# no host\n", nil, "reading deepspeed host list: no hosts"},
		"openmpi, no count": {OpenMPI, "a slots=1\nb\n", nil, `line 2: "b" has no slots=N`},
		"openmpi, word":     {OpenMPI, "a slots=x\n", nil, `line 1: slots=x: not a number`},
		"openmpi, no value": {OpenMPI, "a slots=\n", nil, `line 1: slots=: not a number`},
		"openmpi, zero":     {OpenMPI, "a slots=0\n", nil, `line 1: slots=0: less than 1`},
		"openmpi, sign":     {OpenMPI, "a slots=-1\n", nil, `line 1: slots=-1: not a number`},
		"openmpi, octal":    {OpenMPI, "a slots=010\n", nil, `line 1: slots=010: leading zero`},
		"openmpi, huge": {
			OpenMPI,
			"a slots=99999999999999999999\n",
			nil,
			`line 1: slots=99999999999999999999: more than 1048576`,
		},
		"openmpi, bad maximum": {
			OpenMPI,
			"a slots=1 max_slots=many\n",
			nil,
			`line 1: max_slots=many: not a number`,
		},
		"openmpi, two counts": {
			OpenMPI,
			"a slots=1 cpu=2\n",
			nil,
			`line 1: "cpu=2": the count is given twice`,
		},
		"openmpi, port": {
			OpenMPI,
			"a slots=1 port=22\n",
			nil,
			`line 1: "port=22": not understood, want NAME slots=N`,
		},
		"openmpi, user": {
			OpenMPI,
			"bob@a slots=1\n",
			nil,
			`line 1: host "bob@a": a name in the openmpi host list cannot hold '@'`,
		},
		"openmpi, hydra's": {OpenMPI, "a:2\n", nil, `line 1: "a:2" has no slots=N`},
		"openmpi, CRLF": {
			OpenMPI,
			"a slots=2\r\n",
			nil,
			`line 1: carriage return: line ends must be LF`,
		},
		"openmpi, BOM": {
			OpenMPI,
			"\ufeffa slots=2\n",
			nil,
			"line 1: host \"\\ufeffa\": a name in the openmpi host list cannot hold 'ï'",
		},
		"openmpi, twice":    {OpenMPI, "a slots=2\n\nA slots=2\n", nil, `line 3: host "A": given twice`},
		"hydra, Open MPI's": {Hydra, "a slots=2\n", nil, `line 1: "slots=2": not understood, want NAME:N`},
		"hydra, no value":   {Hydra, "a:\n", nil, `line 1: a:: not a number`},
		"hydra, zero":       {Hydra, "a:0\n", nil, `line 1: a:0: less than 1`},
		"hydra, IPv6":       {Hydra, "::1\n", nil, `line 1: ::1: not a number`},
		"hydra, binding": {
			Hydra,
			"a:2 binding=core\n",
			nil,
			`line 1: "binding=core": not understood, want NAME:N`,
		},
		"horovod, blank": {
			Horovod,
			"a slots=1\n\nb slots=1\n",
			nil,
			`line 2: blank line: horovod stops reading there with an error`,
		},
		"horovod, comment": {Horovod, "#x\n", nil, `line 1: "#x" has no slots=N`},
		"horovod, maximum": {
			Horovod,
			"a slots=1 max_slots=2\n",
			nil,
			`line 1: "max_slots=2": not understood, want NAME slots=N`,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := Parse(strings.NewReader(tt.text), tt.dialect)
			if fmt.Sprint(err) != tt.err && (err != nil || tt.err != "") {
				t.Fatalf("error\n %v, want\n %s", err, tt.err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestParseSize(t *testing.T) {
	full := strings.Repeat("#", maxSize-len("\na:1\n")) + "\na:1\n"
	got, err := Parse(strings.NewReader(full), Hydra)
	if err != nil || len(got) != 1 {
		t.Fatalf("at the limit: %v, %v", got, err)
	}
	_, err = Parse(strings.NewReader(full+"#"), Hydra)
	if err == nil || err.Error() != "reading hydra host list: larger than 4194304 bytes" {
		t.Fatalf("above the limit: %v", err)
	}
}

func TestFailingStreams(t *testing.T) {
	broken := errors.New("broken")
	if _, err := Parse(iotest.ErrReader(broken), Hydra); !errors.Is(err, broken) {
		t.Errorf("reader: %v", err)
	}
	if err := Write(failingWriter{broken}, Hydra, []Host{{"a", 1}}); !errors.Is(err, broken) {
		t.Errorf("writer: %v", err)
	}
	if err := Write(&bytes.Buffer{}, "", []Host{{"a", 1}}); err == nil {
		t.Error("a dialect without a name was accepted")
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

// FuzzRoundTrip asserts that Write writes what Parse accepts, and that Parse reads back the same hosts.
func FuzzRoundTrip(f *testing.F) {
	for _, s := range []string{
		"a slots=1\n", "a:2\nb", "# x\n\na slots=3 max_slots=4 // y", "a slots=1\r\n", "10.0.0.1:1\n", "_:1",
		"port slots=1", "7:7", "\x00",
	} {
		for i := range dialects {
			f.Add(s, i)
		}
	}
	f.Fuzz(func(t *testing.T, text string, i int) {
		d := dialects[uint(i)%uint(len(dialects))]
		hosts, err := Parse(strings.NewReader(text), d)
		if err != nil {
			return
		}
		var buf bytes.Buffer
		if err := Write(&buf, d, hosts); err != nil {
			t.Fatalf("%v: accepted by Parse, refused by Write: %v", hosts, err)
		}
		back, err := Parse(bytes.NewReader(buf.Bytes()), d)
		if err != nil {
			t.Fatalf("%q: written, but not read: %v", buf.String(), err)
		}
		if diff := cmp.Diff(hosts, back); diff != "" {
			t.Fatalf("%q: -first +second:\n%s", text, diff)
		}
		if strings.Count(buf.String(), "\n") != len(hosts) {
			t.Fatalf("%q: %d lines for %d hosts", buf.String(), strings.Count(buf.String(), "\n"), len(hosts))
		}
	})
}
