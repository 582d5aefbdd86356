package rdma

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "rewrite the expected reports in testdata")

// A fixture is a txtar archive of a tree. A file "-> TARGET" is a symbolic link. A file "!EINVAL" fails with that error
// when it is read or, below dev/, opened as a device. The files "limits", "netlink" (a mode, then lines "name protocol
// driver"), "want.json" and "summary" are not part of the tree.
type fixture struct {
	archive *txtar.Archive
	file    string
	tree    fstest.MapFS
	limits  Limits
	netlink netlinkAnswer
}

func load(t testing.TB, file string) fixture {
	t.Helper()
	a, err := txtar.ParseFile(file)
	require.NoError(t, err)
	f := fixture{archive: a, file: file, tree: fstest.MapFS{}}
	for _, file := range a.Files {
		data := string(file.Data)
		switch target, link := strings.CutPrefix(strings.TrimSuffix(data, "\n"), "-> "); {
		case file.Name == "limits":
			_, err := fmt.Sscanf(data, "memlock=%d ipc_lock=%t", &f.limits.Memlock, &f.limits.IPCLock)
			require.NoError(t, err)
		case file.Name == "netlink":
			f.netlink.devices = make(map[string]netlinkDevice)
			for i, line := range strings.Split(strings.TrimSpace(data), "\n") {
				if i == 0 {
					f.netlink.mode = line
					continue
				}
				var name string
				var d netlinkDevice
				_, err := fmt.Sscan(line, &name, &d.protocol, &d.driver)
				require.NoError(t, err)
				f.netlink.devices[name] = d
			}
		case file.Name == "want.json", file.Name == "summary":
		case link:
			f.tree[file.Name] = &fstest.MapFile{Data: []byte(target), Mode: fs.ModeSymlink}
		default:
			f.tree[file.Name] = &fstest.MapFile{Data: file.Data, Mode: 0o444}
		}
	}
	return f
}

func (f fixture) section(name string) string {
	for _, file := range f.archive.Files {
		if file.Name == name {
			return string(file.Data)
		}
	}
	return ""
}

// config returns the Config of the fixture. Its open returns the errno that the node's file names.
func (f fixture) config() Config {
	netlink := func() (netlinkAnswer, error) { return f.netlink, nil }
	return Config{Root: failing{f.tree}, Limits: f.limits, netlink: netlink, open: func(path string) error {
		data, err := fs.ReadFile(f.tree, strings.TrimPrefix(path, "/"))
		if err != nil {
			return &fs.PathError{Op: "open", Path: path, Err: syscall.ENOENT}
		}
		if err := errnoOf(data); err != nil {
			return &fs.PathError{Op: "open", Path: path, Err: err}
		}
		return nil
	}}
}

func errnoOf(data []byte) error {
	name, marked := strings.CutPrefix(strings.TrimSpace(string(data)), "!")
	if !marked {
		return nil
	}
	for n := syscall.Errno(1); n < 140; n++ {
		if unix.ErrnoName(n) == name {
			return n
		}
	}
	return nil
}

// failing is a file system whose marked files return an errno when they are read, as attributes of sysfs do.
type failing struct{ fstest.MapFS }

func (f failing) Open(name string) (fs.File, error) {
	file, err := f.MapFS.Open(name)
	if err != nil {
		return nil, err
	}
	if fi, err := file.Stat(); err == nil && fi.Mode().IsRegular() {
		if data, err := fs.ReadFile(f.MapFS, name); err == nil {
			if errno := errnoOf(data); errno != nil {
				return failingFile{file, errno}, nil
			}
		}
	}
	return file, nil
}

type failingFile struct {
	fs.File
	err error
}

func (f failingFile) Read([]byte) (int, error) { return 0, f.err }

func fixtures(t testing.TB) []fixture {
	files, err := filepath.Glob("testdata/*.txtar")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	var all []fixture
	for _, file := range files {
		all = append(all, load(t, file))
	}
	return all
}

func asJSON(t testing.TB, v any) string {
	data, err := json.MarshalIndent(v, "", " ")
	require.NoError(t, err)
	return string(data) + "\n"
}

func TestFixtures(t *testing.T) {
	for _, f := range fixtures(t) {
		t.Run(strings.TrimSuffix(filepath.Base(f.file), ".txtar"), func(t *testing.T) {
			r := Probe(f.config())
			got, summary := asJSON(t, r), r.Summary().String()+"\n"
			if *update {
				var files []txtar.File
				for _, file := range f.archive.Files {
					if file.Name != "want.json" && file.Name != "summary" {
						files = append(files, file)
					}
				}
				f.archive.Files = append(files, txtar.File{Name: "want.json", Data: []byte(got)},
					txtar.File{Name: "summary", Data: []byte(summary)})
				require.NoError(t, os.WriteFile(f.file, txtar.Format(f.archive), 0o644))
				return
			}
			if diff := cmp.Diff(f.section("want.json"), got); diff != "" {
				t.Errorf("report, -want +got:\n%s", diff)
			}
			if diff := cmp.Diff(f.section("summary"), summary); diff != "" {
				t.Errorf("summary, -want +got:\n%s", diff)
			}
			back, err := DecodeSummary(r.Summary().Encode())
			require.NoError(t, err)
			require.Equal(t, r.Summary(), back)
		})
	}
}

// os.DirFS and fstest.MapFS give the same report, also of symbolic links.
func TestRealDirectory(t *testing.T) {
	for _, f := range fixtures(t) {
		t.Run(strings.TrimSuffix(filepath.Base(f.file), ".txtar"), func(t *testing.T) {
			root := t.TempDir()
			for name, file := range f.tree {
				full := filepath.Join(root, name)
				require.NoError(t, os.MkdirAll(filepath.Dir(full), 0o755))
				switch {
				case file.Mode&fs.ModeSymlink != 0:
					require.NoError(t, os.Symlink(string(file.Data), full))
				case errnoOf(file.Data) != nil && !strings.HasPrefix(name, "dev/"):
					require.NoError(t, os.Mkdir(full, 0o755)) // reading it fails as well
				default:
					require.NoError(t, os.WriteFile(full, file.Data, 0o644))
				}
			}
			c := f.config()
			want := Probe(c)
			c.Root = os.DirFS(root)
			if diff := cmp.Diff(asJSON(t, want), asJSON(t, Probe(c))); diff != "" {
				t.Errorf("-MapFS +DirFS:\n%s", diff)
			}
		})
	}
}

func TestThisMachine(t *testing.T) {
	r := Probe(System())
	require.NotNil(t, r.Devices)
	require.NotNil(t, r.Findings)
	t.Logf("%s\n%s", r.Summary(), asJSON(t, r))
}

func TestZeroConfig(t *testing.T) {
	r := Probe(Config{})
	require.Equal(t, "none", r.Summary().String())
	require.JSONEq(t,
		`{"devices":[],"limits":{"memlock":0,"ipc_lock":false},"netns_mode":"","gpudirect":"","dmabuf":false,"gpus":0,
		"network_direct":false,"peer_memory":"",
		"findings":[{"severity":"info","device":"","what":"no verbs devices: MPI and NCCL will use TCP","fix":""}]}`,
		asJSON(t, r),
	)
}

func TestCapturedTreeWithoutOpen(t *testing.T) {
	f := load(t, "testdata/azure-nd.txtar")
	c := f.config()
	c.open = nil
	for _, d := range Probe(c).Devices {
		require.Equal(t, d.Name != "mlx5_ib5", d.Openable, d.Name)
	}
}

func TestNetdevsAreInjected(t *testing.T) {
	c := load(t, "testdata/roce-dual.txtar").config()
	c.netdevs = []string{"ens3np0", "ens3np1"}
	require.Empty(t, Probe(c).Findings)
	c.netdevs = []string{}
	require.Len(t, Probe(c).Findings, 2)
}

func TestLimitsDecide(t *testing.T) {
	c := load(t, "testdata/mlx5-ndr.txtar").config()
	for name, tt := range map[string]struct {
		limits   Limits
		summary  string
		severity string
	}{
		"unlimited":     {Limits{Memlock: -1}, "2 x InfiniBand 400 Gb/s", ""},
		"capability":    {Limits{Memlock: 65536, IPCLock: true}, "2 x InfiniBand 400 Gb/s", ""},
		"docker":        {Limits{Memlock: 65536}, "2 devices, not usable: memlock too low", SeverityError},
		"systemd":       {Limits{Memlock: 8 << 20}, "2 devices, not usable: memlock too low", SeverityError},
		"just below":    {Limits{Memlock: 1<<30 - 1}, "2 devices, not usable: memlock too low", SeverityError},
		"large, finite": {Limits{Memlock: 1 << 30}, "2 x InfiniBand 400 Gb/s", SeverityWarning},
		"nothing":       {Limits{}, "2 devices, not usable: memlock too low", SeverityError},
	} {
		t.Run(name, func(t *testing.T) {
			c.Limits = tt.limits
			r := Probe(c)
			require.Equal(t, tt.summary, r.Summary().String())
			if tt.severity == "" {
				require.Empty(t, r.Findings)
				return
			}
			require.Len(t, r.Findings, 1)
			require.Equal(t, tt.severity, r.Findings[0].Severity)
			require.Contains(t, r.Findings[0].Fix, "--ulimit memlock=-1")
		})
	}
}

func TestWrongNode(t *testing.T) {
	null, err := os.Stat("/dev/null")
	require.NoError(t, err)
	f := load(t, "testdata/mlx5-ndr.txtar")
	f.tree["dev/infiniband/uverbs0"].Mode = null.Mode()
	f.tree["dev/infiniband/uverbs0"].Sys = null.Sys() // 1:3
	r := Probe(f.config())
	require.False(t, r.Devices[0].Openable)
	require.True(t, r.Devices[1].Openable)
	require.Equal(t, "/dev/infiniband/uverbs0 is not the node of this device: it is 1:3, the device is 231:192",
		r.Findings[0].What)
	require.Equal(t, "1 x InfiniBand 400 Gb/s", r.Summary().String())
}

func TestOpenNode(t *testing.T) {
	require.NoError(t, openNode("/dev/null"))
	for path, want := range map[string]Reason{
		"/dev/infiniband/uverbs-none": reasonAbsent,
		"/dev/null/x":                 reasonAbsent,
		"/":                           reasonOpen,
	} {
		err := openNode(path)
		require.ErrorContains(t, err, "opening "+path+": ")
		d := Device{Verbs: "uverbs0", visible: true, open: err}
		require.Equal(t, want, d.reasonOf(""), "%v", err)
	}
}

func TestSystemLimits(t *testing.T) {
	l := systemLimits()
	var r unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r))
	if r.Cur == unix.RLIM_INFINITY {
		require.EqualValues(t, -1, l.Memlock)
	} else {
		require.EqualValues(t, r.Cur, l.Memlock)
	}
	status, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	var effective uint64
	_, rest, _ := strings.Cut(string(status), "CapEff:")
	_, err = fmt.Sscanf(strings.TrimSpace(rest), "%x", &effective)
	require.NoError(t, err)
	require.Equal(t, effective&(1<<14) != 0, l.IPCLock)
}

func TestTreeLimits(t *testing.T) {
	require.Equal(t, Limits{Memlock: -1}, TreeLimits(fstest.MapFS{}))
	require.Equal(t, Limits{Memlock: 65536, IPCLock: true}, TreeLimits(fstest.MapFS{
		"proc/self/limits": {
			Data: []byte(
				"Max processes             unlimited            unlimited            processes\n" +
					"Max locked memory         65536                65536                bytes     \n",
			),
		},
		"proc/self/status": {Data: []byte("CapPrm:\t0000000000000000\nCapEff:\t0000000000004000\n")},
	}))
	require.Equal(t, Limits{Memlock: -1}, TreeLimits(fstest.MapFS{
		"proc/self/limits": {
			Data: []byte("Max locked memory         unlimited            unlimited            bytes     \n"),
		},
		"proc/self/status": {Data: []byte("CapEff:\tx\n")},
	}))
	require.Equal(t, systemLimits(), TreeLimits(os.DirFS("/")), "what the kernel tells of this process in both ways")
}

// This container may allow it, or a seccomp filter or Yama may forbid it. In both cases no child is left.
func TestReadPeerMemory(t *testing.T) {
	for _, read := range []func() error{readPeerMemory, readChild} {
		if err := read(); err != nil {
			require.ErrorIs(t, err, unix.EPERM)
		}
	}
	_, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
	require.ErrorIs(t, err, unix.ECHILD)
}

// The agent is not dumpable, so its parent and a fork of it cannot be read. The ranks of the job can.
func TestReadPeerMemoryNotDumpable(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread, which gave up capabilities, ends with this goroutine
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	require.NoError(t, unix.Capget(&header, &data[0]))
	data[0].Effective &^= 1 << unix.CAP_SYS_PTRACE
	require.NoError(t, unix.Capset(&header, &data[0]))
	before := readChild()
	require.NoError(t, unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
	defer func() { require.NoError(t, unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)) }()
	require.Equal(t, before, readChild())
}

func TestPeerMemoryIsReported(t *testing.T) {
	for want, err := range map[string]error{
		"allowed": nil, "denied": fmt.Errorf("x: %w", syscall.EPERM), "": syscall.ENOSYS,
	} {
		r := Probe(Config{peerMemory: func() error { return err }})
		require.Equal(t, want, r.PeerMemory)
		require.Equal(t, want == "denied", r.Summary().Flags&flagPeerMemory != 0)
	}
}

// Brief changes no summary, neither of captured trees nor of random tables.
func TestBriefTellsTheSame(t *testing.T) {
	same := func(t require.TestingT, c Config) (left int) {
		whole := Probe(c)
		c.Brief = true
		brief := Probe(c)
		require.Equal(t, whole.Summary(), brief.Summary())
		require.Equal(t, whole.Findings, brief.Findings)
		for i := range whole.Devices {
			for j := range whole.Devices[i].Ports {
				a, b := &whole.Devices[i].Ports[j], &brief.Devices[i].Ports[j]
				for _, g := range b.GIDs {
					require.Contains(t, a.GIDs, g)
				}
				left += len(a.GIDs) - len(b.GIDs)
				b.GIDs = a.GIDs
			}
		}
		require.Equal(t, whole, brief)
		return left
	}
	files, err := filepath.Glob("testdata/*.txtar")
	require.NoError(t, err)
	left := 0
	for _, file := range files {
		left += same(t, load(t, file).config())
	}
	rapid.Check(t, func(t *rapid.T) {
		tree := fstest.MapFS{}
		write := func(name, text string) { tree[name] = &fstest.MapFile{Data: []byte(text + "\n")} }
		const dir = "sys/class/infiniband/mlx5_0/ports/1/"
		write("sys/class/infiniband/mlx5_0/node_guid", "a088:c203:0074:cfda")
		write("sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0")
		write("dev/infiniband/uverbs0", "")
		write(dir+"state", "4: ACTIVE")
		write(dir+"link_layer", rapid.SampledFrom([]string{"InfiniBand", "Ethernet", ""}).Draw(t, "link layer"))
		for i := range rapid.IntRange(0, 6).Draw(t, "entries") {
			n := strconv.Itoa(i)
			write(dir+"gids/"+n, rapid.SampledFrom([]string{
				"0000:0000:0000:0000:0000:0000:0000:0000",
				"fe80:0000:0000:0000:a288:c2ff:fe74:cfda",
				"0000:0000:0000:0000:0000:ffff:0a00:0001",
				"2001:0db8:0000:0000:0000:0000:0000:0001",
				"no address",
			}).Draw(t, "gid"))
			write(dir+"gid_attrs/types/"+n, rapid.SampledFrom([]string{"IB/RoCE v1", "RoCE v2", ""}).Draw(t, "type"))
			write(dir+"gid_attrs/ndevs/"+n, rapid.SampledFrom([]string{"eth0", "eth1", ""}).Draw(t, "netdev"))
		}
		left += same(t, Config{Root: tree, Limits: Limits{Memlock: -1}, netdevs: []string{"lo", "eth0"}})
	})
	require.Positive(t, left)
}

// readAttribute and package os read the same.
func TestReadAttribute(t *testing.T) {
	system, here := newTree(os.DirFS("/")), newTree(os.DirFS("/"))
	system.read = readAttribute
	for _, name := range []string{
		"proc/sys/kernel/osrelease", "proc/version", "sys/class/net/lo/address", "proc/self/limits",
		"sys/class/net/lo/none", "proc", "dev/null",
	} {
		require.Equal(t, here.text(name), system.text(name), name)
	}
	require.NotEmpty(t, system.text("proc/sys/kernel/osrelease"))
	_, err := readAttribute("/sys/class/net/lo/none", make([]byte, 1))
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// Each file of a tree fails in turn, in every way that was seen. Only its own value is missing from the report.
func TestFailingFiles(t *testing.T) {
	f := load(t, "testdata/mixed-node.txtar")
	for name, file := range f.tree {
		if file.Mode&fs.ModeSymlink != 0 || strings.HasPrefix(name, "dev/") {
			continue
		}
		for _, errno := range []string{"!EINVAL", "!EAGAIN", "!EPERM"} {
			tree := fstest.MapFS{}
			for n, other := range f.tree {
				tree[n] = other
			}
			tree[name] = &fstest.MapFile{Data: []byte(errno), Mode: 0o444}
			c := f.config()
			c.Root = failing{tree}
			r := Probe(c)
			require.Len(t, r.Devices, 12, name)
			usable := 0
			for _, d := range r.Devices {
				for _, p := range d.Ports {
					if p.Usable {
						usable++
					}
				}
			}
			require.GreaterOrEqual(t, usable, 9, "%s %s", name, errno)
		}
	}
}

// Datagrams of RDMA netlink as the kernel sends them, and truncated ones.
func TestMessages(t *testing.T) {
	message := func(kind uint16, body []byte) []byte {
		b := binary.NativeEndian.AppendUint32(nil, uint32(16+len(body)))
		b = binary.NativeEndian.AppendUint16(b, kind)
		return append(append(b, make([]byte, 10)...), body...)
	}
	device := appendAttr(nil, attrIndex, binary.NativeEndian.AppendUint32(nil, 3))
	device = appendAttr(device, attrName, []byte("mlx5_0\x00"))
	device = appendAttr(device, attrProtocol, []byte("ib\x00"))
	errno := func(n int32) []byte {
		return message(unix.NLMSG_ERROR, binary.NativeEndian.AppendUint32(nil, uint32(-n)))
	}

	n := netlinkAnswer{devices: map[string]netlinkDevice{}}
	done, err := parseMessages(append(message(nldevGet, device), message(unix.NLMSG_DONE, nil)...), n.addDevice)
	require.NoError(t, err)
	require.True(t, done)
	require.Equal(t, map[string]netlinkDevice{"mlx5_0": {protocol: "ib", index: 3}}, n.devices)

	done, err = parseMessages(append(message(nldevSysGet, appendAttr(nil, attrNetnsMode, []byte{1})), errno(0)...),
		n.addMode)
	require.NoError(t, err)
	require.True(t, done)
	require.Equal(t, "shared", n.mode)

	_, err = parseMessages(errno(int32(unix.EPERM)), n.addDevice)
	require.ErrorIs(t, err, unix.EPERM)
	done, err = parseMessages(message(nldevGet, nil), n.addDevice)
	require.NoError(t, err)
	require.False(t, done, "more follows")
	for _, torn := range [][]byte{
		message(nldevGet, device)[:30], {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
		message(unix.NLMSG_ERROR, nil),
	} {
		_, err = parseMessages(torn, n.addDevice)
		require.Error(t, err)
	}
	require.Empty(t, parseAttrs([]byte{200, 0, 1, 0}))
	require.Empty(t, parseAttrs([]byte{1, 0, 1, 0}))
}

// A kernel with RDMA answers any user. Other kernels have no such socket.
func TestQueryNetlink(t *testing.T) {
	n, err := queryNetlink()
	if err != nil {
		require.ErrorContains(t, err, "RDMA netlink: ")
		return
	}
	require.NotNil(t, n.devices)
}

func TestQueryVerbs(t *testing.T) {
	_, err := queryVerbs("/dev/infiniband/uverbs-none", 1)
	require.ErrorIs(t, err, unix.ENOENT)
	_, err = queryVerbs("/dev/null", 1)
	require.ErrorIs(t, err, unix.ENOTTY)
}

// The report holds the devices' answers. A device that does not answer stays usable.
func TestVerbs(t *testing.T) {
	f := load(t, "testdata/cgroup.txtar")
	f.tree["dev/infiniband/uverbs0"].Data = nil
	c := f.config()
	c.verbs = func(path string, driver uint32) (*verbsAnswer, error) {
		require.Equal(t, "/dev/infiniband/uverbs0", path)
		require.EqualValues(t, 1, driver)
		return &verbsAnswer{device: Attributes{MaxQP: 7}, ports: []*PortAttributes{{ActiveMTU: 4096}}}, nil
	}
	d := Probe(c).Devices[0]
	require.EqualValues(t, 7, d.Attributes.MaxQP)
	require.Equal(t, 4096, d.Ports[0].Attributes.ActiveMTU)
	c.verbs = func(string, uint32) (*verbsAnswer, error) { return nil, unix.EINVAL }
	r := Probe(c)
	require.Nil(t, r.Devices[0].Attributes)
	require.True(t, r.Devices[0].Ports[0].Usable)
}

func TestGPUDirect(t *testing.T) {
	f := load(t, "testdata/mlx5-ndr.txtar")
	delete(f.tree, "sys/module/nvidia_peermem/version")
	c := f.config()
	findings := Probe(c).Findings
	require.Len(t, findings, 1)
	require.Equal(t, SeverityInfo, findings[0].Severity)
	f.tree["proc/sys/kernel/osrelease"] = &fstest.MapFile{Data: []byte("5.11.0\n")}
	require.Equal(t, SeverityWarning, Probe(c).Findings[0].Severity)
	for release, want := range map[string]bool{
		"6.1.0-56-amd64": true, "5.12.0": true, "5.4.0": false, "4.18.0-553.el8": false, "": false, "x": false,
		"5": false,
	} {
		f.tree["proc/sys/kernel/osrelease"] = &fstest.MapFile{Data: []byte(release)}
		require.Equal(t, want, Probe(c).DMABuf, release)
	}
}

func TestParsers(t *testing.T) {
	for in, want := range map[string]string{
		"4: ACTIVE": "ACTIVE", "1: DOWN": "DOWN", "5: LinkUp": "LinkUp", "6: LinkErrorRecovery": "LinkErrorRecovery",
		"": "", "ACTIVE": "", "x: ACTIVE": "", "4:": "",
	} {
		require.Equal(t, want, parseState(in), in)
	}
	for in, want := range map[string]float64{
		"400 Gb/sec (4X NDR)": 400, "2.5 Gb/sec (1X SDR)": 2.5, "10 Gb/sec (4X SDR)": 10, "": 0, "fast": 0,
		"-1 Gb/sec": 0, "NaN Gb/sec": 0, "Inf Gb/sec": 0, "1e9 Gb/sec": 0, "100": 0,
	} {
		require.Equal(t, want, parseRate(in), in)
	}
	for in, want := range map[string]uint32{
		"0x0": 0, "0x239": 569, "0xffff": 65535, "ffff": 0, "0x": 0, "0xfffffffff": 0, "-0x1": 0,
	} {
		require.Equal(t, want, parseHex(in), in)
	}
	for _, p := range [][2]string{
		{"mlx5_2", "mlx5_10"}, {"mlx5_9", "mlx5_an0"}, {"a", "b"}, {"a", "a0"}, {"1", "2"}, {"9", "10"},
		{"x99999999999999999999", "x999999999999999999999"},
	} {
		require.Negative(t, natural(p[0], p[1]), "%v", p)
		require.Positive(t, natural(p[1], p[0]), "%v", p)
		require.Zero(t, natural(p[0], p[0]), "%v", p)
	}
}

func TestReasons(t *testing.T) {
	for err, want := range map[error]Reason{
		syscall.ENOENT: reasonAbsent, syscall.EPERM: reasonForbidden, syscall.EACCES: reasonMode,
		syscall.ENXIO: reasonGone,
		syscall.EIO:   reasonGone, syscall.ENODEV: reasonGone, syscall.EMFILE: reasonOpen,
		errors.New("odd"):              reasonOpen,
		errWrongNode{"1:3", "231:192"}: reasonWrongNode,
	} {
		d := Device{Verbs: "uverbs0", visible: true, open: fmt.Errorf("wrapped: %w", err)}
		require.Equal(t, want, d.reasonOf("shared"), "%v", err)
	}
	refused := Device{Verbs: "uverbs0", visible: true, open: syscall.EPERM}
	require.Equal(t, reasonHidden, refused.reasonOf("exclusive"), "netlink, which knows it not, and /sys do not agree")
	refused.Protocol = "ib"
	require.Equal(t, reasonForbidden, refused.reasonOf("exclusive"))
	seen := map[string]bool{}
	for r := reasonNone; r < reasons; r++ {
		require.NotContains(t, r.String(), "reason ", "a reason without words")
		require.False(t, seen[r.String()], "%s twice", r)
		seen[r.String()] = true
	}
	require.Equal(t, "reason 200", Reason(200).String())
}

func TestSummary(t *testing.T) {
	withRails := func(k Kind, r rails) Summary {
		s := Summary{Devices: 1}
		s.rails[k] = r
		return s
	}
	both := Summary{
		Devices: 9,
		Flags:   flagGPUs | flagIPv4,
		pkeys:   []uint16{0x7fff, 0x8003, 0xffff},
		subnets: 1 << 31,
		ports:   7,
	}
	both.rails[KindInfiniBand], both.rails[KindRoCE] = rails{8, 4000, 17}, rails{1, 1000, 65535}
	full := Summary{
		Devices: 255,
		Reason:  reasons - 1,
		Flags:   65535,
		pkeys:   []uint16{1, 2, 3},
		subnets: 1<<32 - 1,
		ports:   1<<32 - 1,
	}
	for k := KindInfiniBand; k < kinds; k++ {
		full.rails[k] = rails{255, 65535, 65535}
	}
	for want, s := range map[string]Summary{
		"none":                                       {},
		"off":                                        {Flags: FlagOff},
		"1 device, not usable: memlock too low":      {Devices: 1, Reason: ReasonMemlock},
		"9 devices, not usable: no active port":      {Devices: 9, Reason: reasonPort},
		"Azure Network Direct only":                  {Flags: FlagNetworkDirect},
		"2 x InfiniBand 400 Gb/s":                    withRails(KindInfiniBand, rails{2, 4000, 1}),
		"1 x software RDMA 2.5 Gb/s":                 withRails(KindSoftware, rails{1, 25, 2}),
		"1 x InfiniBand":                             withRails(KindInfiniBand, rails{1, 0, 3}),
		"8 x InfiniBand 400 Gb/s, 1 x RoCE 100 Gb/s": both,
		"off of everything":                          full,
	} {
		if want != "off of everything" {
			require.Equal(t, want, s.String())
		}
		require.Equal(t, s.rails != [kinds]rails{}, s.Usable())
		b := s.Encode()
		require.LessOrEqual(t, len(b), maxSummary)
		back, err := DecodeSummary(b)
		require.NoError(t, err)
		require.Equal(t, s, back)
		_, err = DecodeSummary(append(b, make([]byte, maxSummary-len(b))...))
		require.NoError(t, err, "room for later versions")
		for n := range b {
			if _, err = DecodeSummary(b[:n]); n < len(b) {
				require.Error(t, err, "cut to %d of %d bytes", n, len(b))
			}
		}
	}
	good := Summary{Devices: 1}.Encode()
	for want, b := range map[string][]byte{
		"decoding summary: 0 bytes, want 6 to 64":  nil,
		"decoding summary: 65 bytes, want 6 to 64": append(append([]byte{}, good...), make([]byte, 59)...),
		"decoding summary: version 3, want 2":      append([]byte{3}, good[1:]...),
		"decoding summary: unknown reason":         {2, 1, 99, 0, 0, 0},
		"decoding summary: unknown kind of fabric": {2, 1, 0, 0, 0, 0x80},
		"decoding summary: it ends early or a number is out of range": {
			2, 1, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0,
		},
	} {
		_, err := DecodeSummary(b)
		require.EqualError(t, err, want)
	}
}

func FuzzDecodeSummary(f *testing.F) {
	f.Add(Summary{}.Encode())
	f.Add([]byte{2, 1, 0, 0, 0, 2, 1, 0, 9, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 1, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := DecodeSummary(b)
		if err != nil {
			return
		}
		again, err := DecodeSummary(s.Encode())
		require.NoError(t, err)
		require.Equal(t, s, again)
		_ = s.String()
	})
}

func TestSummaryOfManyDevices(t *testing.T) {
	var r Report
	for range 300 {
		r.Devices = append(
			r.Devices,
			Device{
				visible:  true,
				Verbs:    "uverbs0",
				Openable: true,
				Ports:    []Port{{State: "ACTIVE", LinkLayer: "InfiniBand", RateGbps: 99999}},
			},
		)
	}
	r.Limits = Limits{Memlock: -1}
	r.resolve(nil)
	s := r.Summary()
	require.EqualValues(t, 255, s.Devices)
	require.EqualValues(t, 255, s.rails[KindInfiniBand].count)
	require.EqualValues(t, 65535, s.rails[KindInfiniBand].deciGbps)
}

// FuzzContents puts the same content into every file of a tree. No content makes Probe fail.
func FuzzContents(f *testing.F) {
	for _, s := range []string{
		"", "4: ACTIVE", "400 Gb/sec (4X NDR)", "InfiniBand", "Ethernet", "0x8003", "fe80::1", "mlx5_0", "231:192",
		"\x00\xff", "../../x", strings.Repeat("9", 5000),
	} {
		f.Add([]byte(s), []byte("4: ACTIVE"))
	}
	base := load(f, "testdata/mlx5-ndr.txtar")
	f.Fuzz(func(t *testing.T, one, other []byte) {
		tree := fstest.MapFS{}
		i := 0
		for name, file := range base.tree {
			if file.Mode&fs.ModeSymlink == 0 {
				data := one
				if i++; i%2 == 0 {
					data = other
				}
				file = &fstest.MapFile{Data: data, Mode: file.Mode}
			}
			tree[name] = file
		}
		r := Probe(Config{Root: tree, Limits: Limits{Memlock: -1}})
		s := r.Summary()
		back, err := DecodeSummary(s.Encode())
		require.NoError(t, err)
		require.Equal(t, s, back)
		_ = s.String()
		_, _ = parseMessages(one,
			func(a attrs) { n := netlinkAnswer{devices: map[string]netlinkDevice{}}; n.addDevice(a); n.addMode(a) })
		var again Report
		require.NoError(t, json.Unmarshal([]byte(asJSON(t, r)), &again))
	})
}

func BenchmarkProbe(b *testing.B) {
	root := b.TempDir()
	write := func(name, data string) {
		full := filepath.Join(root, name)
		require.NoError(b, os.MkdirAll(filepath.Dir(full), 0o755))
		require.NoError(b, os.WriteFile(full, []byte(data+"\n"), 0o644))
	}
	for d := range 12 {
		dir := fmt.Sprintf("sys/class/infiniband/mlx5_%d/", d)
		write(dir+"node_guid", "a088:c203:0074:cfda")
		write(fmt.Sprintf("sys/class/infiniband_verbs/uverbs%d/ibdev", d), fmt.Sprintf("mlx5_%d", d))
		write(fmt.Sprintf("dev/infiniband/uverbs%d", d), "")
		write(dir+"ports/1/state", "4: ACTIVE")
		write(dir+"ports/1/link_layer", "Ethernet")
		for i := range 256 {
			gid := "0000:0000:0000:0000:0000:0000:0000:0000"
			if i < 8 {
				gid = fmt.Sprintf("fe80:0000:0000:0000:0000:0000:0000:00%02x", i+1)
				write(fmt.Sprintf("%sports/1/gid_attrs/types/%d", dir, i), "RoCE v2")
				write(fmt.Sprintf("%sports/1/gid_attrs/ndevs/%d", dir, i), "eth0")
			}
			write(fmt.Sprintf("%sports/1/gids/%d", dir, i), gid)
		}
	}
	read := func(path string, buf []byte) (int, error) { return readAttribute(root+path, buf) }
	for b.Loop() {
		if r := Probe(Config{Root: os.DirFS(root), read: read}); len(r.Devices) != 12 ||
			len(r.Devices[11].Ports[0].GIDs) != 8 {
			b.Fatal("wrong report")
		}
	}
}

func TestWorst(t *testing.T) {
	require.Zero(t, Report{}.Worst())
	info, peer := Finding{Severity: SeverityInfo}, Finding{Severity: SeverityWarning, Fix: fixPeer}
	first, second := Finding{Severity: SeverityWarning, What: "1"}, Finding{Severity: SeverityWarning, What: "2"}
	failure := Finding{Severity: SeverityError, What: "3"}
	require.Zero(t, Report{Findings: []Finding{info, peer}}.Worst(), "it is about no device")
	require.Equal(t, first, Report{Findings: []Finding{peer, first, second}}.Worst())
	require.Equal(t, failure, Report{Findings: []Finding{first, failure}}.Worst())
}
