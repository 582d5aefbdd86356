package vm

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/integration/testsignals"
	"github.com/paiinit/paiinit/integration/vm/wire"
)

// waitTimeout is the timeout of one step, long enough for emulation on a busy machine.
const waitTimeout = 10 * time.Minute

// programs are the programs of this host that the tests need, with their Debian packages.
var programs = map[string]string{
	"qemu-system-x86_64": "qemu-system-x86", "ip": "iproute2", "rdma": "iproute2", "ibv_devinfo": "ibverbs-utils",
	"apt-get": "apt", "dpkg-deb": "dpkg", "ldd": "libc-bin", "sh": "dash",
}

// provider is Debian's path of the library that libibverbs loads for rxe.
const provider = "/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so"

// kit has the kernel and the files of all machines.
type kit struct {
	kernel         *Kernel
	guest, paiinit string
	files          map[string]string
	missing        string // reason why this host cannot run machines
	err            error
}

var (
	built string // temporary directory of the programs
	tools = sync.OnceValue(func() kit {
		k, err := newKit(built)
		k.err = err
		return k
	})
)

func TestMain(m *testing.M) {
	testsignals.Default()
	var err error
	if built, err = os.MkdirTemp("", "paiinit-vm-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	status := m.Run()
	_ = os.RemoveAll(built)
	os.Exit(status)
}

func newKit(dir string) (kit, error) {
	k := kit{files: map[string]string{
		provider: provider, "/etc/libibverbs.d/rxe.driver": "/etc/libibverbs.d/rxe.driver",
	}}
	for program, pkg := range programs {
		path, err := exec.LookPath(program)
		for _, sbin := range []string{"/usr/sbin", "/sbin"} {
			if err != nil {
				path, err = exec.LookPath(filepath.Join(sbin, program))
			}
		}
		if err != nil {
			k.missing = fmt.Sprintf("%s; on Debian: apt-get install %s", err, pkg)
			return k, nil
		}
		if slices.Contains([]string{"ip", "rdma", "ibv_devinfo", "sh"}, program) {
			k.files["/bin/"+program] = path
		}
	}
	if _, err := os.Stat(provider); err != nil {
		k.missing = fmt.Sprintf("%v; on Debian for amd64: apt-get install ibverbs-providers", err)
		return k, nil
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		return k, err
	}
	for file, pkg := range map[string]string{"guest": "./integration/vm/guest", "paiinit": "./cmd/paiinit"} {
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(dir, file), pkg)
		cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return k, fmt.Errorf("building %s: %w\n%s", pkg, err, out)
		}
	}
	k.guest, k.paiinit = filepath.Join(dir, "guest"), filepath.Join(dir, "paiinit")
	k.files["/usr/bin/paiinit"], k.files["/usr/bin/guest"] = k.paiinit, k.guest
	if k.kernel, err = FindKernel(filepath.Join(root, ".cache", "vm")); err != nil {
		k.missing = err.Error() // Debian's archive may be out of reach
	}
	return k, nil
}

// requireKit skips the test if this host cannot run machines, or fails it if PAIINIT_TEST_REQUIRE is set.
func requireKit(t *testing.T) kit {
	t.Helper()
	k := tools()
	require.NoError(t, k.err)
	switch {
	case k.missing == "":
	case os.Getenv("PAIINIT_TEST_REQUIRE") != "":
		t.Fatal(k.missing)
	default:
		t.Skip(k.missing)
	}
	return k
}

// machine is a Machine whose errors fail the test.
type machine struct {
	t *testing.T
	*Machine
}

func boot(t *testing.T, k kit, change func(*Config)) machine {
	t.Helper()
	dir, err := os.MkdirTemp(built, "m") // a short name, because the length of a socket's path is limited
	require.NoError(t, err)
	c := Config{
		Kernel: k.kernel, Guest: k.guest, Files: k.files, Dir: dir,
		Modules: []string{"crc32_pclmul", "crc32_generic", "virtio_pci", "virtio_net", "dummy",
			"ib_uverbs", "rdma_ucm", "ib_umad", "rdma_rxe"},
	}
	if change != nil {
		change(&c)
	}
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	began := time.Now()
	m, err := Boot(ctx, c)
	require.NoError(t, err)
	t.Logf("booted in %v", time.Since(began).Round(time.Millisecond))
	t.Cleanup(m.Close)
	return machine{t, m}
}

// run runs a command, which may fail.
func (m machine) run(c wire.Command) wire.Result {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	r, err := m.Run(ctx, c)
	require.NoError(m.t, err)
	return r
}

// must runs commands, one on each line, which must succeed. It returns the output of the last one.
func (m machine) must(commands string) string {
	m.t.Helper()
	out := ""
	for line := range strings.Lines(strings.TrimSpace(commands)) {
		r := m.run(wire.Command{Args: strings.Fields(line)})
		require.Zero(m.t, r.Status, "%s: %s", line, r.Stderr)
		out = r.Stdout
	}
	return out
}
