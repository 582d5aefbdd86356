package inspect

import (
	"encoding/binary"
	"fmt"
	"io/fs"
	"math"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

func file(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text), Mode: 0o644} }

func link(target string) *fstest.MapFile {
	return &fstest.MapFile{Data: []byte(target), Mode: fs.ModeSymlink | 0o777}
}

// loaderCache builds ld.so.cache with pairs of a library and its path.
func loaderCache(pairs ...string) string {
	const header, entry = 48, 24
	b := append([]byte("ld.so-1.7.0 an older cache"), make([]byte, 6)...)
	start := len(b)
	b = append(b, "glibc-ld.so.cache1.1"...)
	b = binary.NativeEndian.AppendUint32(b, uint32(len(pairs)/2))
	b = append(b, make([]byte, header-24)...)
	at := uint32(header + entry*len(pairs)/2)
	var text []byte
	for i := 0; i < len(pairs); i += 2 {
		b = binary.NativeEndian.AppendUint32(b, 3)
		for _, s := range pairs[i : i+2] {
			b = binary.NativeEndian.AppendUint32(b, at+uint32(len(text)))
			text = append(append(text, s...), 0)
		}
		b = append(b, make([]byte, 12)...)
	}
	if len(b)-start != int(at) {
		panic("wrong layout")
	}
	return string(append(b, text...))
}

func show(facts []Fact) string {
	var b strings.Builder
	for _, f := range facts {
		fmt.Fprintf(&b, "%s = %s\n", f.Name, f.Value)
	}
	return b.String()
}

func known[T any](v T) func() (T, bool) { return func() (T, bool) { return v, true } }

func TestFacts(t *testing.T) {
	for _, tt := range []struct {
		name   string
		source Source
		want   string
	}{
		{"nothing is known", Source{Files: fstest.MapFS{}, GPUs: -1}, ""},
		{
			"a container with GPUs",
			Source{
				Files: fstest.MapFS{
					"etc/os-release": file("PRETTY_NAME=\"Ubuntu 22.04.3 LTS\"\nVERSION_ID=\"22.04\"\n"),
					"usr/bin/mpirun": file("ELF"),
					"app/train.py":   file("print(1)\n"),
					"app/ds.json":    file("{}"),
					"proc/driver/nvidia/version": file("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.12\n" +
						"GCC version:  gcc version 12.2.0\n"),
					"etc/ld.so.cache": file(loaderCache(
						"libc.so.6", "/lib/x86_64-linux-gnu/libc.so.6",
						"libmpi.so.40", "/usr/lib/x86_64-linux-gnu/libmpi.so.40",
						"libnccl.so.2", "/usr/lib/x86_64-linux-gnu/libnccl.so.2")),
					"usr/lib/x86_64-linux-gnu/libmpi.so.40":                               link("libmpi.so.40.30.4"),
					"usr/lib/x86_64-linux-gnu/libmpi.so.40.30.4":                          file("mpi"),
					"usr/lib/x86_64-linux-gnu/libnccl.so.2":                               link("libnccl.so.2.16.2"),
					"usr/lib/x86_64-linux-gnu/libnccl.so.2.16.2":                          file("old"),
					"opt/nccl/libnccl.so.2":                                               link("libnccl.so.2.18.3"),
					"opt/nccl/libnccl.so.2.18.3":                                          file("newer"),
					"opt/conda/lib/python3.10/site-packages/x":                            file(""),
					"opt/conda/lib/python3.10/site-packages/nvidia/nccl/lib/libnccl.so.2": file("python"),
				},
				Environ: []string{
					"PATH=/usr/bin", "LD_LIBRARY_PATH=:relative:/none:/opt/nccl", "NCCL_DEBUG=INFO", "NCCL_DEBUG=WARN",
					"NCCL_ALGO=", "OMPI_MCA_btl=^openib", "UCX_TLS=rc,cuda", "NCCL_TOKEN=t", "FI_KEY=k",
					"OMPI_PASSWORD=p",
					"FI_PROVIDER=a\tb", "UCX_LOG=" + strings.Repeat("x", 100), "OMPI_COMM_WORLD_RANK=1",
					"NCCL_HOSTID=a",
					"AWS_SECRET=s", "PAIINIT_SECRET=s",
				},
				Program: "/usr/bin/mpirun",
				Words: []string{
					"mpirun", "-np", "2", "sh", "-c", "cd /app && python 'train.py' --config=ds.json > log; ./none.sh",
					"data.bin", "$X.py",
				},
				Dir: "/app", GPUs: 8,
				SharedMemory: known(uint64(64 << 20)), LockedMemory: known(uint64(math.MaxUint64)), MTU: known(9000),
				Kernel: known("6.1.0-13-amd64"),
			},
			`image = Ubuntu 22.04.3 LTS
file /usr/bin/mpirun = 3 bytes, sha256 706abe3c9015
file /app/train.py = 9 bytes, sha256 cc42155088fc
file /app/ds.json = 2 bytes, sha256 44136fa355b3
file /app/none.sh = does not exist
NVIDIA driver = 535.104.12
GPUs = 8
libmpi = 40.30.4, 3 bytes in /usr/lib/x86_64-linux-gnu
libnccl = 2.18.3, 5 bytes in /opt/nccl
libnccl of Python = libnccl.so.2, 6 bytes in /opt/conda/lib/python3.10/site-packages/nvidia/nccl/lib
FI_PROVIDER = a?b
NCCL_ALGO = (empty)
NCCL_DEBUG = INFO
OMPI_MCA_btl = ^openib
UCX_LOG = 100 bytes, sha256 09ecb6ebc8bc
UCX_TLS = rc,cuda
/dev/shm = 64 MiB
locked memory = unlimited
MTU to rank 0 = 9000
kernel = 6.1.0-13-amd64
`,
		},
		{
			"an unusual container",
			Source{
				Files: fstest.MapFS{
					"usr/lib/os-release":        file("PRETTY_NAME='Alpine'\nVERSION_ID=3.19\n"),
					"sys/module/nvidia/version": file("550.54\n"),
					"bin/fifo":                  &fstest.MapFile{Mode: fs.ModeNamedPipe},
					"etc/ld.so.cache":           file("glibc-ld.so.cache1.1 too short"),
					"usr/lib/libmpi.so.12":      file("mpich"),
				},
				Program: "/bin/fifo", GPUs: 0, SharedMemory: known(uint64(1000)),
				LockedMemory: func() (uint64, bool) { return 0, false },
			},
			`image = Alpine 3.19
file /bin/fifo = is not a regular file
NVIDIA driver = 550.54
GPUs = 0
libmpi = libmpi.so.12, 5 bytes in /usr/lib
/dev/shm = 1000 B
`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) { require.Equal(t, tt.want, show(Facts(tt.source))) })
	}
}

// A large file costs no more than its beginning, and many variables and arguments no more than their bounds.
func TestFactsAreBounded(t *testing.T) {
	big := strings.Repeat("x", 2*maxHashed)
	s := Source{Files: fstest.MapFS{"a.py": file(big), "b.py": file(big + "y")}, Dir: "/", GPUs: -1}
	s.Words = []string{"python"}
	for i := range 100 {
		s.Environ = append(s.Environ, fmt.Sprintf("NCCL_%03d=%d", i, i))
		s.Words = append(s.Words, fmt.Sprintf("%d.py", i))
	}
	require.Equal(t, s.fingerprint("/a.py")[len("524288"):], s.fingerprint("/b.py")[len("524289"):])
	require.Len(t, s.variables(), maxVariables)
	require.LessOrEqual(t, len(s.commandFiles()), maxWords+1)
}

// The loader's cache of this machine, if it has one, leads to libraries that exist.
func TestHere(t *testing.T) {
	s := Here(nil, "lo")
	for name, at := range parseCache(s.cache()) {
		if _, err := fs.Stat(s.Files, at[1:]); err != nil {
			t.Logf("%s at %s: %v", name, at, err)
		}
	}
	got := make(map[string]string)
	for _, f := range Facts(s) {
		got[f.Name] = f.Value
	}
	for _, name := range []string{"locked memory", "MTU to rank 0", "kernel"} {
		require.NotEmpty(t, got[name], name)
	}
	_, ok := mtu("no-such-interface-here")
	require.False(t, ok)
	_, ok = mtu("")
	require.False(t, ok)
}

func FuzzParseCache(f *testing.F) {
	f.Add([]byte(loaderCache("libmpi.so.40", "/usr/lib/libmpi.so.40")))
	f.Add([]byte("glibc-ld.so.cache1.1"))
	f.Fuzz(func(_ *testing.T, b []byte) { parseCache(b) })
}
