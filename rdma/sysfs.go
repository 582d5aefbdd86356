package rdma

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Paths below the root. drivers/infiniband/core/sysfs.c and uverbs_main.c of the kernel define the formats, and
// Documentation/ABI/stable/sysfs-class-infiniband describes them.
const (
	devicesDir = "sys/class/infiniband"
	verbsDir   = "sys/class/infiniband_verbs"
	nodeDir    = "/dev/infiniband/"
)

const (
	maxRead  = 4096                   // bytes, a page: no attribute of sysfs is longer
	maxTable = 1024                   // entries that are read of a table of GIDs or partition keys; rxe has 1024 GIDs
	readTime = 100 * time.Millisecond // for one read: some drivers return EAGAIN, on which package os waits forever
)

// tree reads a root directory.
type tree struct {
	root fs.FS
	read func(path string, buf []byte) (int, error) // nil reads from root
	bufs *sync.Pool                                 // of maxRead bytes: a device may have thousands of attributes

	brief   bool // see Config
	netdevs []string
}

func newTree(root fs.FS) tree {
	if root == nil {
		root = embed.FS{} // no files
	}
	return tree{root: root, bufs: &sync.Pool{New: func() any { return new([maxRead]byte) }}}
}

// devices lists the devices of both classes: in the exclusive mode of network namespaces, the verbs class still shows
// devices that the other class hides.
func (t tree) devices() []Device {
	names := t.names(devicesDir)
	devices := make([]Device, len(names))
	var read sync.WaitGroup // some drivers ask the firmware for each attribute
	// One processor stays free for the rest of this process: a goroutine that reads small files keeps one for 10 ms.
	places := make(chan struct{}, max(1, runtime.GOMAXPROCS(0)-1))
	for i, name := range names {
		places <- struct{}{}
		read.Go(func() {
			devices[i] = t.device(name)
			<-places
		})
	}
	read.Wait()
	for _, uverbs := range t.names(verbsDir) {
		ibdev := t.text(path.Join(verbsDir, uverbs, "ibdev"))
		if ibdev == "" { // the plain file abi_version
			continue
		}
		i := slices.IndexFunc(devices, func(d Device) bool { return d.Name == ibdev })
		if i < 0 {
			i = len(devices)
			devices = append(devices, Device{Name: ibdev, NUMANode: -1, Netdevs: []string{}, Ports: []Port{}})
		}
		if devices[i].Verbs == "" {
			devices[i].Verbs, devices[i].VerbsDev = uverbs, t.text(path.Join(verbsDir, uverbs, "dev"))
		}
	}
	for i := range devices { // few: slices.SortFunc of this type would add 14 kB to the program
		for ; i > 0 && natural(devices[i].Name, devices[i-1].Name) < 0; i-- {
			devices[i], devices[i-1] = devices[i-1], devices[i]
		}
	}
	return devices
}

// device reads sys/class/infiniband/NAME.
func (t tree) device(name string) Device {
	dir := path.Join(devicesDir, name)
	d := Device{
		Name:         name,
		Driver:       t.link(path.Join(dir, "device/driver")),
		Firmware:     t.text(path.Join(dir, "fw_ver")),
		Board:        t.text(path.Join(dir, "board_id")),
		NodeGUID:     t.text(path.Join(dir, "node_guid")),
		SysImageGUID: t.text(path.Join(dir, "sys_image_guid")),
		PCI:          parsePCI(t.link(path.Join(dir, "device"))),
		NUMANode:     -1,
		Netdevs:      append([]string{}, t.names(path.Join(dir, "device/net"))...),
		Ports:        []Port{},
		visible:      true,
		nodeType:     parseState(t.text(path.Join(dir, "node_type"))),
	}
	if n, err := strconv.Atoi(t.text(path.Join(dir, "device/numa_node"))); err == nil {
		d.NUMANode = max(n, -1)
	}
	// Only rxe and siw name the network interface below them.
	if parent := t.text(path.Join(dir, "parent")); parent != "" {
		d.Netdevs, d.software = []string{parent}, true
	}
	for _, n := range t.numbers(path.Join(dir, "ports")) {
		d.Ports = append(d.Ports, t.port(path.Join(dir, "ports", strconv.Itoa(n)), n))
	}
	return d
}

// port reads sys/class/infiniband/NAME/ports/N.
func (t tree) port(dir string, n int) Port {
	p := Port{
		Port:      n,
		State:     parseState(t.text(path.Join(dir, "state"))),
		PhysState: parseState(t.text(path.Join(dir, "phys_state"))),
		LinkLayer: t.text(path.Join(dir, "link_layer")),
		RateGbps:  parseRate(t.text(path.Join(dir, "rate"))),
		LID:       parseHex(t.text(path.Join(dir, "lid"))),
		SMLID:     parseHex(t.text(path.Join(dir, "sm_lid"))),
		CapMask:   parseHex(t.text(path.Join(dir, "cap_mask"))),
		PKeys:     []string{},
		GIDs:      []GID{},
	}
	for _, i := range t.numbers(path.Join(dir, "pkeys")) {
		// Unused entries hold the invalid key: 0, or 0x8000 as a full member.
		if key := parseHex(t.text(path.Join(dir, "pkeys", strconv.Itoa(i)))); key&0x7fff != 0 && key <= 0xffff {
			p.PKeys = append(p.PKeys, fmt.Sprintf("0x%04x", key))
		}
	}
	t.gids(&p, dir)
	return p
}

func (t tree) gids(p *Port, dir string) {
	infiniBand := p.LinkLayer == "InfiniBand"
	entries := []int{0} // the only entry that tells the subnet
	if !t.brief || !infiniBand {
		entries = t.numbers(path.Join(dir, "gids"))
	}
	for _, i := range entries {
		gid, err := netip.ParseAddr(t.text(path.Join(dir, "gids", strconv.Itoa(i))))
		if err != nil || gid.IsUnspecified() || gid.Zone() != "" {
			continue
		}
		g := GID{Index: i, GID: gid.String(), Type: "IB"}
		if t.brief && i > 0 && p.settled(t.netdevs) && (!g.routable() || p.families()&g.family() != 0) {
			continue
		}
		if !infiniBand {
			// Reading them for an empty entry returns EINVAL. RoCE v1 is "IB/RoCE v1".
			g.Type = strings.TrimPrefix(t.text(path.Join(dir, "gid_attrs/types", strconv.Itoa(i))), "IB/")
			g.Netdev = t.text(path.Join(dir, "gid_attrs/ndevs", strconv.Itoa(i)))
		}
		p.GIDs = append(p.GIDs, g)
	}
}

// node tries to open a device's node. dev is the device's number.
func (t tree) node(uverbs, dev string, open func(string) error) error {
	if open != nil {
		if err := open(nodeDir + uverbs); err != nil {
			return err
		}
	}
	fi, err := fs.Stat(t.root, strings.TrimPrefix(nodeDir, "/")+uverbs)
	switch {
	case err != nil && open != nil:
		return nil // it was opened, even if the tree does not show it
	case err != nil:
		return err
	}
	// A node that was made by hand may have the number of another device.
	st, ok := fi.Sys().(*syscall.Stat_t)
	if ok && fi.Mode()&fs.ModeCharDevice != 0 && dev != "" {
		if got := fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev)); got != dev {
			return errWrongNode{got, dev}
		}
	}
	return nil
}

// gpuDirect returns the name of the loaded peer memory module.
func (t tree) gpuDirect() string {
	const peers = "sys/kernel/mm/memory_peers/"
	for _, module := range []string{"sys/module/nvidia_peermem", peers + "nv_mem", peers + "nv_mem_nc"} {
		if t.exists(module + "/version") {
			return path.Base(module)
		}
	}
	return ""
}

// dmabuf says whether the kernel has REG_DMABUF_MR: 5.12 and later.
func (t tree) dmabuf() bool {
	var major, minor int
	_, err := fmt.Sscanf(t.text("proc/sys/kernel/osrelease"), "%d.%d", &major, &minor)
	return err == nil && (major > 5 || major == 5 && minor >= 12)
}

// gpus counts the nodes /dev/nvidiaN.
func (t tree) gpus() int {
	count := 0
	for _, name := range t.names("dev") {
		if prefix, n := splitNumber(name); prefix == "nvidia" && n >= 0 {
			count++
		}
	}
	return count
}

// networkDirect looks for the devices of Azure's A8, H16r and NC24r: WALinuxAgent writes their address to
// /dev/hvnd_rdma and a provider ofa-v2-ib0 to dat.conf. Images for machines with SR-IOV may have that line too.
func (t tree) networkDirect(devices []Device) bool {
	virtual := slices.ContainsFunc(devices, func(d Device) bool { return strings.HasPrefix(d.Driver, "mlx5") })
	if virtual || len(devices) == 0 {
		return false
	}
	for _, name := range []string{"etc/dat.conf", "etc/rdma/dat.conf", "usr/local/etc/dat.conf"} {
		text, err := fs.ReadFile(t.root, name)
		if err == nil && bytes.Contains(append([]byte("\n"), text...), []byte("\nofa-v2-ib0 ")) {
			return true
		}
	}
	return false
}

func (t tree) exists(name string) bool {
	_, err := fs.Stat(t.root, name)
	return err == nil
}

// names lists a directory, sorted with numbers by value; nothing if it cannot be read. Symbolic links count: sysfs
// shows devices as links.
func (t tree) names(dir string) (names []string) {
	entries, _ := fs.ReadDir(t.root, dir) // an error ends the list
	for _, e := range entries {
		names = append(names, e.Name())
	}
	slices.SortFunc(names, natural)
	return names
}

// numbers returns the entries of a directory that are numbers, sorted.
func (t tree) numbers(dir string) (numbers []int) {
	entries, _ := fs.ReadDir(t.root, dir)
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil && n >= 0 && n <= maxTable && strconv.Itoa(n) == e.Name() {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers
}

// text reads an attribute and trims blanks; "" if it cannot be read or is not printable ASCII.
func (t tree) text(name string) string {
	buf := t.bufs.Get().(*[maxRead]byte)
	defer t.bufs.Put(buf)
	read := t.read
	if read == nil {
		read = t.readRoot
	}
	n, err := read("/"+name, buf[:])
	s := string(bytes.TrimSpace(buf[:n]))
	if err != nil || strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c > '~' }) {
		return ""
	}
	return s
}

// readRoot reads from the tree. One read returns a whole attribute.
func (t tree) readRoot(path string, buf []byte) (int, error) {
	f, err := t.root.Open(strings.TrimPrefix(path, "/"))
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	if d, ok := f.(interface{ SetReadDeadline(time.Time) error }); ok {
		_ = d.SetReadDeadline(time.Now().Add(readTime))
	}
	n, err := f.Read(buf)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// link returns the last element of a symbolic link's target, "" if there is none.
func (t tree) link(name string) string {
	target, err := fs.ReadLink(t.root, name)
	if err != nil {
		return ""
	}
	return path.Base(target)
}

// parseState returns the name in "4: ACTIVE".
func parseState(s string) string {
	number, name, found := strings.Cut(s, ":")
	if _, err := strconv.Atoi(number); !found || err != nil {
		return ""
	}
	return strings.TrimSpace(name)
}

// parseRate returns the number in "400 Gb/sec (4X NDR)" or "2.5 Gb/sec (1X SDR)".
func parseRate(s string) float64 {
	number, _, found := strings.Cut(s, " Gb/sec")
	rate, err := strconv.ParseFloat(number, 64)
	if !found || err != nil || !(rate > 0 && rate < 1e6) {
		return 0
	}
	return rate
}

// parseHex returns the number in "0x32".
func parseHex(s string) uint32 {
	digits, found := strings.CutPrefix(s, "0x")
	n, err := strconv.ParseUint(digits, 16, 32)
	if !found || err != nil {
		return 0
	}
	return uint32(n)
}

// parsePCI returns s if it is the address of a function on a PCI bus, "0000:3b:00.0".
func parsePCI(s string) string {
	bus, function, found := strings.Cut(s, ".")
	if strings.Count(bus, ":") != 2 || !found || len(function) != 1 {
		return ""
	}
	return s
}

// natural compares names and puts mlx5_2 before mlx5_10.
func natural(a, b string) int {
	pa, na := splitNumber(a)
	pb, nb := splitNumber(b)
	if pa == pb && na != nb && na >= 0 && nb >= 0 {
		return na - nb
	}
	return strings.Compare(a, b)
}

// splitNumber splits a name before its last digits. The number is -1 if there are none or too many.
func splitNumber(s string) (prefix string, number int) {
	prefix = strings.TrimRight(s, "0123456789")
	number, err := strconv.Atoi(s[len(prefix):])
	if err != nil || len(s)-len(prefix) > 9 {
		return s, -1
	}
	return prefix, number
}
