package envspec_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/envspec"
)

var update = flag.Bool("update", false, "rewrite the want.json and error sections of testdata")

// fakeDNS answers from a section with lines "host NAME ADDR..." and "ptr ADDR NAME...".
type fakeDNS struct {
	hosts map[string][]netip.Addr
	ptrs  map[netip.Addr][]string
}

func (d fakeDNS) LookupHost(_ context.Context, name string) ([]netip.Addr, error) {
	if addrs, ok := d.hosts[name]; ok {
		return addrs, nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
}

func (d fakeDNS) LookupPTR(_ context.Context, addr netip.Addr) ([]string, error) {
	if names, ok := d.ptrs[addr]; ok {
		return names, nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: addr.String(), IsNotFound: true}
}

func parseDNS(t *testing.T, text string) fakeDNS {
	t.Helper()
	d := fakeDNS{hosts: map[string][]netip.Addr{}, ptrs: map[netip.Addr][]string{}}
	for _, line := range lines(text) {
		f := strings.Fields(line)
		require.GreaterOrEqual(t, len(f), 3, "dns line %q", line)
		switch f[0] {
		case "host":
			for _, a := range f[2:] {
				d.hosts[f[1]] = append(d.hosts[f[1]], netip.MustParseAddr(a))
			}
		case "ptr":
			d.ptrs[netip.MustParseAddr(f[1])] = f[2:]
		default:
			t.Fatalf("dns line %q", line)
		}
	}
	return d
}

// lines returns the lines of a section that are not blank. A line in double quotes is a Go string.
func lines(text string) []string {
	var list []string
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if strings.TrimSpace(line) == "" {
			continue
		}
		if strings.HasPrefix(line, `"`) {
			if s, err := strconv.Unquote(line); err == nil {
				line = s
			}
		}
		list = append(list, line)
	}
	return list
}

// parseInput reads a fixture: env and flags (NAME=value lines), files/PATH, dns, addrs, hostname, cpus.
func parseInput(t *testing.T, ar *txtar.Archive) envspec.Input {
	t.Helper()
	in := envspec.Input{Flags: map[string]string{}}
	files := fstest.MapFS{}
	for _, f := range ar.Files {
		text := string(f.Data)
		path, isFile := strings.CutPrefix(f.Name, "files/")
		switch {
		case f.Name == "env":
			in.Environ = lines(text)
		case f.Name == "flags":
			for _, line := range lines(text) {
				name, value, _ := strings.Cut(line, "=")
				in.Flags[name] = value
			}
		case isFile:
			files[path] = &fstest.MapFile{Data: f.Data, Mode: 0o644}
		case f.Name == "dns":
			in.Resolver = parseDNS(t, text)
		case f.Name == "addrs":
			for _, line := range lines(text) {
				in.Addrs = append(in.Addrs, netip.MustParseAddr(line))
			}
		case f.Name == "hostname":
			in.Hostname = strings.TrimSpace(text)
		case f.Name == "cpus":
			n, err := strconv.Atoi(strings.TrimSpace(text))
			require.NoError(t, err)
			in.CPUs = n
		case f.Name == "want.json" || f.Name == "error":
		default:
			t.Fatalf("section %q", f.Name)
		}
	}
	if len(files) > 0 {
		in.Files = files
	}
	return in
}

func readFixture(t *testing.T, path string) (*txtar.Archive, envspec.Input) {
	t.Helper()
	ar, err := txtar.ParseFile(path)
	require.NoError(t, err)
	return ar, parseInput(t, ar)
}

func fixtures(t testing.TB) []string {
	t.Helper()
	list, err := filepath.Glob("testdata/*/*.txtar")
	require.NoError(t, err)
	require.NotEmpty(t, list)
	return list
}

func TestFixtures(t *testing.T) {
	for _, path := range fixtures(t) {
		t.Run(
			strings.TrimSuffix(strings.TrimPrefix(filepath.ToSlash(path), "testdata/"), ".txtar"),
			func(t *testing.T) {
				ar, in := readFixture(t, path)
				job, err := envspec.Read(context.Background(), in)
				got := txtar.File{Name: "want.json"}
				if err != nil {
					var varErr *envspec.VarError
					require.ErrorAs(t, err, &varErr)
					got = txtar.File{Name: "error", Data: []byte(err.Error() + "\n")}
				} else {
					var b bytes.Buffer
					enc := json.NewEncoder(&b)
					enc.SetEscapeHTML(false)
					enc.SetIndent("", "  ")
					require.NoError(t, enc.Encode(job))
					got.Data = b.Bytes()
					require.Equal(t, filepath.Base(filepath.Dir(path)), job.System,
						"fixtures lie in the folder of their system")
				}
				isResult := func(f txtar.File) bool { return f.Name == "want.json" || f.Name == "error" }
				if *update {
					ar.Files = append(slices.DeleteFunc(ar.Files, isResult), got)
					require.NoError(t, os.WriteFile(path, txtar.Format(ar), 0o666))
					return
				}
				i := slices.IndexFunc(ar.Files, isResult)
				require.GreaterOrEqual(t, i, 0, "no want.json or error section")
				if diff := cmp.Diff(string(ar.Files[i].Data), string(got.Data)); diff != "" ||
					ar.Files[i].Name != got.Name {
					t.Errorf("%s instead of %s (-want +got):\n%s", got.Name, ar.Files[i].Name, diff)
				}
				if err == nil {
					checkJob(t, job)
				} else {
					checkError(t, err)
				}
			},
		)
	}
}

// checkJob asserts what holds for every accepted environment.
func checkJob(t interface {
	require.TestingT
	Helper()
}, job envspec.Job) {
	t.Helper()
	require.True(t, job.Size >= 1 || job.Size == -1 && job.Rank > 0, "size %d, rank %d", job.Size, job.Rank)
	require.True(t, job.Rank == -1 || job.Rank >= 0 && (job.Rank < job.Size || job.Size == -1), "rank %d of %d",
		job.Rank, job.Size)
	require.GreaterOrEqual(t, job.Index, -1)
	require.True(t, job.Port >= 1 && job.Port <= 65535, "port %d", job.Port)
	require.GreaterOrEqual(t, job.Slots, 0)
	require.Contains(t, envspec.Systems(), job.System)
	if job.Rank == 0 {
		require.True(t, job.First)
	}
	if len(job.Roles) > 0 {
		require.Equal(t, job.Role, job.Roles[job.Order].Name)
	}
	if len(job.Peers) > 0 {
		require.Len(t, job.Peers, job.Size)
		require.GreaterOrEqual(t, job.Rank, 0)
		for i, p := range job.Peers {
			require.Equal(t, i, p.Rank)
			require.NotNil(t, p.Names)
		}
		self := job.Peers[job.Rank]
		require.Equal(t, []any{job.Role, job.Index, job.Alias, job.Port, job.Slots},
			[]any{self.Role, self.Index, self.Alias, self.Port, self.Slots})
	}
	require.NotNil(t, job.Roles)
	require.NotNil(t, job.Peers)
	require.NotNil(t, job.Seeds)
	require.NotNil(t, job.Secrets)
	require.NotNil(t, job.Warnings)
	require.NotNil(t, job.Sources)
	for field, derived := range map[string]bool{
		"system": true, "role": true, "size": true, "slots": true, "port": true, "gpus": true, "job": job.ID != "",
		"attempt": job.Attempt != "", "index": job.Index >= 0, "rank": job.Rank >= 0, "peers": len(job.Peers) > 0,
		"seeds": len(job.Seeds) > 0, "azure_rdma": len(job.AzureRDMA) > 0,
	} {
		if derived {
			require.NotEmpty(t, job.Sources[field], "source of %s", field)
		}
	}
	for _, w := range job.Warnings {
		require.NotContains(t, w, "\n")
	}
}

// checkError asserts that a refusal names a variable and shows its value, on one line.
func checkError(t interface {
	require.TestingT
	Helper()
}, err error) {
	t.Helper()
	var varErr *envspec.VarError
	require.True(t, errors.As(err, &varErr), "%T", err)
	text := err.Error()
	require.NotContains(t, text, "\n")
	require.NotEmpty(t, varErr.Var)
	require.Contains(t, text, varErr.Var)
	if varErr.Value == "" {
		require.Regexp(t, `( is not|neither [^ ]+ nor [^ ]+ is|none of .+ and [^ ]+ is) set`, text)
		return
	}
	shown := strconv.Quote(varErr.Value)
	if len(varErr.Value) > 160 {
		shown = strconv.Quote(strings.ToValidUTF8(varErr.Value[:160], ""))
	}
	shown = strings.Trim(shown, `"`)
	if !strings.Contains(text, shown) {
		// The message shows the parsed number: 7 for 007.
		n, numErr := strconv.Atoi(varErr.Value)
		require.NoError(t, numErr, "%q does not show %q", text, varErr.Value)
		require.Contains(t, text, strconv.Itoa(n))
	}
}
