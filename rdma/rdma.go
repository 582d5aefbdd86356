// Package rdma finds out which verbs hardware this container can use, why it cannot use the rest, and what all ranks
// of a job can use together.
//
// A container can use a device of its host only if the device's node was passed in and can be opened, a port is active,
// and enough memory can be locked. A job that lacks one of these fails after minutes with a message such as "Cannot
// allocate memory", or silently falls back to TCP. [Probe] reads /sys and /dev, asks the kernel's RDMA netlink and the
// devices, and returns a [Report] with advice. [Summary] is the part of a report that fits into a gossip record, and
// [Judge] compares the summaries of all ranks.
//
// The package needs no verbs library and no cgo, changes nothing, and never fails as a whole: where a device is half
// visible, a file cannot be read or a value makes no sense, only that value is missing. It does not load modules,
// measure bandwidth, or know launchers: package launch sets their variables.
package rdma

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Config says where Probe looks. [System] returns the Config of this container; a captured tree needs only Root and
// Limits.
type Config struct {
	// Root is the container's root directory, os.DirFS("/"), or a captured tree with sys/ and dev/ in it. Nil is an
	// empty tree.
	Root fs.FS
	// read reads the start of the file at an absolute path, an attribute of a device. Nil reads from Root.
	read func(path string, buf []byte) (int, error)
	// open tries to open the device node at an absolute path and returns the errno. With nil, a node that exists counts
	// as openable.
	open func(path string) error
	// verbs asks the device behind a node that can be opened. Nil does not ask.
	verbs func(path string, driver uint32) (*verbsAnswer, error)
	// netlink asks the kernel. Nil does not ask. Probe calls it only where there is a device.
	netlink func() (netlinkAnswer, error)
	// peerMemory tries whether one process may read another's memory. Nil leaves it unknown.
	peerMemory func() error
	// Limits are those of this process.
	Limits Limits
	// netdevs are the network interfaces of this network namespace. Nil means those of sys/class/net in Root.
	netdevs []string
	// Brief skips GIDs that change neither [Report.Summary], nor which ports can be used, nor the findings: of
	// InfiniBand all but the first.
	Brief bool
}

// Limits decide how much memory a verbs program may pin.
type Limits struct {
	// Memlock is the soft RLIMIT_MEMLOCK in bytes, -1 for unlimited.
	Memlock int64 `json:"memlock"`
	// IPCLock says that CAP_IPC_LOCK is in the effective set, which lifts the limit.
	IPCLock bool `json:"ipc_lock"`
}

// Report is what Probe found. Its JSON is that of `paiinit rdma --json`.
type Report struct {
	// Devices are sorted by name, numbers by value.
	Devices []Device `json:"devices"`
	Limits  Limits   `json:"limits"`
	// NetnsMode is "shared" if every network namespace sees a device, "exclusive" if only its own does, "" if unknown.
	NetnsMode string `json:"netns_mode"`
	// GPUDirect is the kernel module that lets NICs reach GPU memory: "nvidia_peermem", "nv_mem" or "nv_mem_nc", "" if
	// none is loaded. NCCL looks for the same three (net_ib/gdr.cc).
	GPUDirect string `json:"gpudirect"`
	// DMABuf says that the kernel can give NICs the memory of other devices without such a module (5.12 and later). The
	// GPU's driver must support it as well.
	DMABuf bool `json:"dmabuf"`
	// GPUs is the number of NVIDIA GPUs in the container.
	GPUs int `json:"gpus"`
	// NetworkDirect says that this is an Azure machine with Network Direct devices, from before SR-IOV.
	NetworkDirect bool `json:"network_direct"`
	// PeerMemory is "allowed" or "denied": whether processes of this container may read each other's memory (CMA),
	// which MPI uses between the ranks of one host. "" if unknown.
	PeerMemory string    `json:"peer_memory"`
	Findings   []Finding `json:"findings"`
}

// Device is one verbs device.
type Device struct {
	// Name is the kernel's name, such as "mlx5_0". On another host it may be another device.
	Name string `json:"name"`
	// Driver is the name of the parent's driver, "" for software devices.
	Driver string `json:"driver"`
	// Protocol is "ib", "roce", "iw", "opa" or "usnic" as RDMA netlink tells it, "" if it does not.
	Protocol string `json:"protocol"`
	// Firmware is fw_ver, Board is board_id; "" where the driver has none.
	Firmware string `json:"firmware"`
	Board    string `json:"board"`
	// NodeGUID and SysImageGUID are in the kernel's form, "a088:c203:0074:cfda". Functions of one card share the
	// latter.
	NodeGUID     string `json:"node_guid"`
	SysImageGUID string `json:"sys_image_guid"`
	// PCI is the address on the bus, "0000:3b:00.0"; "" for software devices.
	PCI string `json:"pci"`
	// NUMANode is the memory node that the device is near to, -1 if there is none or it is unknown.
	NUMANode int `json:"numa_node"`
	// Netdevs are the network interfaces of the device, even if this container does not have them.
	Netdevs []string `json:"netdevs"`
	// Verbs is the name of the character device below /dev/infiniband, "" if there is none. VerbsDev is its device
	// number, "231:192".
	Verbs    string `json:"verbs"`
	VerbsDev string `json:"verbs_dev"`
	// Openable says that it can be opened for reading and writing; if not, OpenError is the name of the errno.
	Openable  bool   `json:"openable"`
	OpenError string `json:"open_error"`
	// Attributes is the device's answer, null if it was not asked or did not answer.
	Attributes *Attributes `json:"attributes"`
	Ports      []Port      `json:"ports"`

	open     error  // why it is not Openable
	visible  bool   // below sys/class/infiniband
	nodeType string // "CA", "RNIC"
	software bool   // rxe or siw, on top of a network interface
}

// Port is one port of a device. Strings and numbers are "" and 0 where they cannot be read.
type Port struct {
	// Port counts from 1.
	Port int `json:"port"`
	// State is NOP, DOWN, INIT, ARMED, ACTIVE or ACTIVE_DEFER.
	State string `json:"state"`
	// PhysState is for example LinkUp, Polling or Disabled.
	PhysState string `json:"phys_state"`
	// LinkLayer is InfiniBand, Ethernet (RoCE, iWARP) or Unknown (EFA).
	LinkLayer string `json:"link_layer"`
	// RateGbps is the data rate in Gb/s. Kernels report 10 (4X SDR) for speeds that they do not know.
	RateGbps float64 `json:"rate_gbps"`
	// LID and SMLID are the addresses of the port and of its subnet manager, 0 on Ethernet.
	LID   uint32 `json:"lid"`
	SMLID uint32 `json:"sm_lid"`
	// CapMask is the port's capability mask.
	CapMask uint32 `json:"cap_mask"`
	// PKeys are the valid partition keys in table order, such as "0xffff".
	PKeys []string `json:"pkeys"`
	// GIDs are the entries of the table that are in use.
	GIDs []GID `json:"gids"`
	// Attributes is the device's answer about the port, null if it was not asked or did not answer.
	Attributes *PortAttributes `json:"attributes"`
	// Fabric is the port's kind: "InfiniBand", "RoCE", "EFA", "Omni-Path", "iWARP", "software RDMA" or "none".
	Fabric Kind `json:"fabric"`
	// Usable says that programs in this container can use the port; if not, Why says what is in the way.
	Usable bool   `json:"usable"`
	Why    string `json:"why"`

	reason Reason
}

// GID is one entry of a port's GID table.
type GID struct {
	// Index is the position in the table, which may have holes.
	Index int `json:"index"`
	// GID is written as an IPv6 address, "::ffff:10.0.0.1" for one made from IPv4.
	GID string `json:"gid"`
	// Type is "IB", "RoCE v1" or "RoCE v2", "" if unknown.
	Type string `json:"type"`
	// Netdev is the network interface it belongs to, "" if there is none.
	Netdev string `json:"netdev"`
}

// Probe examines every device.
func Probe(c Config) Report {
	t := newTree(c.Root)
	netdevs := c.netdevs
	if netdevs == nil {
		netdevs = t.names("sys/class/net")
	}
	t.read, t.brief, t.netdevs = c.read, c.Brief, netdevs
	r := Report{
		Devices: t.devices(), Limits: c.Limits, GPUDirect: t.gpuDirect(), DMABuf: t.dmabuf(), GPUs: t.gpus(),
		NetworkDirect: t.exists("dev/hvnd_rdma"), Findings: []Finding{},
	}
	var n netlinkAnswer
	if c.netlink != nil && (len(r.Devices) > 0 || t.exists(devicesDir)) {
		n, _ = c.netlink() // fails on old kernels and in sandboxes: the answer stays empty
	}
	r.NetnsMode = n.mode
	var asked sync.WaitGroup
	for i := range r.Devices {
		d := &r.Devices[i]
		about := n.devices[d.Name]
		d.Protocol = about.protocol
		d.software = d.software || about.driver == driverRXE || about.driver == driverSIW
		if d.Verbs == "" {
			continue
		}
		d.open = t.node(d.Verbs, d.VerbsDev, c.open)
		d.Openable, d.OpenError = d.open == nil, errnoName(d.open)
		if d.Openable && c.verbs != nil && about.driver != 0 {
			asked.Go(func() {
				if v, err := c.verbs(nodeDir+d.Verbs, about.driver); err == nil {
					d.add(v)
				}
			})
		}
	}
	asked.Wait()
	r.NetworkDirect = r.NetworkDirect || t.networkDirect(r.Devices)
	if c.peerMemory != nil {
		switch err := c.peerMemory(); {
		case err == nil:
			r.PeerMemory = "allowed"
		case errors.Is(err, syscall.EPERM):
			r.PeerMemory = "denied"
		}
	}
	r.resolve(netdevs)
	r.Findings = append(r.Findings, t.findings(r, netdevs)...)
	return r
}

// add takes over the device's answer.
func (d *Device) add(v *verbsAnswer) {
	d.Attributes = &v.device
	for i := range d.Ports {
		if p := &d.Ports[i]; p.Port <= len(v.ports) {
			p.Attributes = v.ports[p.Port-1]
		}
	}
}

func errnoName(err error) string {
	var errno syscall.Errno
	switch {
	case err == nil:
		return ""
	case errors.As(err, &errno):
		return unix.ErrnoName(errno)
	case errors.Is(err, fs.ErrNotExist):
		return "ENOENT"
	}
	return "unknown"
}

// Reason says why no port can be used.
type Reason uint8

// The reasons, each checked after the ones before it. The numbers go over the network.
const (
	reasonNone      Reason = iota // usable, or nothing there
	reasonHidden                  // the device is in another network namespace
	reasonNoVerbs                 // the kernel offers no verbs interface
	reasonAbsent                  // ENOENT: the node was not passed in
	reasonForbidden               // EPERM: device cgroup
	reasonMode                    // EACCES: file mode
	reasonGone                    // ENXIO, EIO: removed or reset
	reasonWrongNode               // the node is that of another device
	reasonOpen                    // any other error
	reasonPort                    // no active port
	reasonLinkLayer               // an active port of an unknown kind
	reasonAddress                 // an active port without a GID of this container's network
	ReasonMemlock                 // too little memory can be locked
	reasons                       // the number of reasons
)

var reasonTexts = [reasons]string{
	reasonNone:      "nothing in the way",
	reasonHidden:    "device in another network namespace",
	reasonNoVerbs:   "no verbs interface",
	reasonAbsent:    "no device node",
	reasonForbidden: "device not permitted",
	reasonMode:      "device not accessible to this user",
	reasonGone:      "device gone",
	reasonWrongNode: "wrong device node",
	reasonOpen:      "device cannot be opened",
	reasonPort:      "no active port",
	reasonLinkLayer: "unknown link layer",
	reasonAddress:   "no address on this network",
	ReasonMemlock:   "memlock too low",
}

// String returns a few words for people.
func (r Reason) String() string {
	if r < reasons {
		return reasonTexts[r]
	}
	return "reason " + strconv.Itoa(int(r))
}

// errWrongNode says that a node has the number of another device.
type errWrongNode struct{ node, device string }

func (e errWrongNode) Error() string {
	return fmt.Sprintf("it is %s, the device is %s", e.node, e.device)
}

// reasonOf says why a node cannot be opened; ib_uverbs_open in drivers/infiniband/core/uverbs_main.c returns the
// errors.
func (d *Device) reasonOf(netnsMode string) Reason {
	var wrong errWrongNode
	switch err := d.open; {
	case !d.visible:
		return reasonHidden
	case d.Verbs == "":
		return reasonNoVerbs
	case err == nil:
		return reasonNone
	case errors.As(err, &wrong):
		return reasonWrongNode
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ENOTDIR), errors.Is(err, fs.ErrNotExist):
		return reasonAbsent
	case errors.Is(err, syscall.EPERM) && netnsMode == "exclusive" && d.Protocol == "":
		return reasonHidden // netlink does not list it for this network namespace: /sys is stale
	case errors.Is(err, syscall.EPERM):
		return reasonForbidden
	case errors.Is(err, syscall.EACCES):
		return reasonMode
	case errors.Is(err, syscall.ENXIO), errors.Is(err, syscall.ENODEV), errors.Is(err, syscall.EIO):
		return reasonGone
	}
	return reasonOpen
}
