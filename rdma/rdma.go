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
	Root   fs.FS
	Limits Limits // of this process
	// Brief skips GIDs that change neither [Report.Summary], nor which ports can be used, nor the findings: of
	// InfiniBand all but the first.
	Brief bool

	// How to look further. A nil function is not called: then read reads from Root, open assumes that an
	// existing node can be opened, and the rest stays unknown. Paths are absolute.
	read       func(path string, buf []byte) (int, error) // the start of an attribute of a device
	open       func(path string) error                    // tries a device node and returns the errno
	verbs      func(path string, driver uint32) (*verbsAnswer, error)
	netlink    func() (netlinkAnswer, error) // called only where there is a device
	peerMemory func() error                  // tries whether one process may read another's memory
	netdevs    []string                      // interfaces of this network namespace, nil for sys/class/net in Root
}

// Limits decide how much memory a verbs program may pin.
type Limits struct {
	Memlock int64 `json:"memlock"`  // the soft RLIMIT_MEMLOCK in bytes, -1 for unlimited
	IPCLock bool  `json:"ipc_lock"` // CAP_IPC_LOCK is in the effective set, which lifts the limit
}

// Report is what Probe found. Its JSON is that of `paiinit rdma --json`.
type Report struct {
	Devices []Device `json:"devices"` // by name, numbers by value
	Limits  Limits   `json:"limits"`
	// NetnsMode is "shared" if every network namespace sees a device, "exclusive" if only the device's own namespace
	// sees it, "" if unknown.
	NetnsMode string `json:"netns_mode"`
	// GPUDirect is the kernel module that lets NICs reach GPU memory: "nvidia_peermem", "nv_mem" or "nv_mem_nc", "" if
	// none is loaded. NCCL looks for the same three (net_ib/gdr.cc).
	GPUDirect string `json:"gpudirect"`
	// DMABuf says that the kernel can give NICs the memory of other devices without such a module (5.12 and later). The
	// GPU's driver must support it as well.
	DMABuf        bool `json:"dmabuf"`
	GPUs          int  `json:"gpus"`           // NVIDIA's in the container
	NetworkDirect bool `json:"network_direct"` // an Azure machine with Network Direct devices, from before SR-IOV
	// PeerMemory is "allowed" or "denied": whether processes of this container may read each other's memory (CMA),
	// which MPI uses between the ranks of one host. "" if unknown.
	PeerMemory string    `json:"peer_memory"`
	Findings   []Finding `json:"findings"`
}

// Device is one verbs device.
type Device struct {
	Name     string `json:"name"`     // the kernel's, such as "mlx5_0": on another host it may be another device
	Driver   string `json:"driver"`   // of the parent, "" for software devices
	Protocol string `json:"protocol"` // "ib", "roce", "iw", "opa" or "usnic", "" if RDMA netlink does not tell
	Firmware string `json:"firmware"` // fw_ver, "" where the driver has none
	Board    string `json:"board"`    // board_id, "" where the driver has none
	// The GUIDs are in the kernel's form, "a088:c203:0074:cfda". Functions of one card share the second one.
	NodeGUID     string   `json:"node_guid"`
	SysImageGUID string   `json:"sys_image_guid"`
	PCI          string   `json:"pci"`       // the address on the bus, "0000:3b:00.0"; "" for software devices
	NUMANode     int      `json:"numa_node"` // the memory node that the device is near to, -1 if none or unknown
	Netdevs      []string `json:"netdevs"`   // network interfaces, even if this container does not have them
	Verbs        string   `json:"verbs"`     // the character device below /dev/infiniband, "" if there is none
	VerbsDev     string   `json:"verbs_dev"` // its device number, "231:192"
	// Openable says that Verbs can be opened for reading and writing; if not, OpenError is the name of the errno.
	Openable   bool        `json:"openable"`
	OpenError  string      `json:"open_error"`
	Attributes *Attributes `json:"attributes"` // the device's answer, null if it was not asked or did not answer
	Ports      []Port      `json:"ports"`

	open     error  // why it is not Openable
	visible  bool   // below sys/class/infiniband
	nodeType string // "CA", "RNIC"
	software bool   // rxe or siw, on top of a network interface
}

// Port is one port of a device. Strings and numbers are "" and 0 where they cannot be read.
type Port struct {
	Port       int             `json:"port"`       // from 1
	State      string          `json:"state"`      // NOP, DOWN, INIT, ARMED, ACTIVE or ACTIVE_DEFER
	PhysState  string          `json:"phys_state"` // for example LinkUp, Polling or Disabled
	LinkLayer  string          `json:"link_layer"` // InfiniBand, Ethernet (RoCE, iWARP) or Unknown (EFA)
	RateGbps   float64         `json:"rate_gbps"`  // kernels report 10 (4X SDR) for speeds that they do not know
	LID        uint32          `json:"lid"`        // 0 on Ethernet
	SMLID      uint32          `json:"sm_lid"`     // of the subnet manager, 0 on Ethernet
	CapMask    uint32          `json:"cap_mask"`   // capability mask
	PKeys      []string        `json:"pkeys"`      // the valid partition keys in table order, such as "0xffff"
	GIDs       []GID           `json:"gids"`       // the entries of the table that are in use
	Attributes *PortAttributes `json:"attributes"` // the device's answer, null if it was not asked or did not answer
	Fabric     Kind            `json:"fabric"`
	// Usable says that programs in this container can use the port; if not, Why says what is in the way.
	Usable bool   `json:"usable"`
	Why    string `json:"why"`

	reason Reason
}

// GID is one entry of a port's GID table.
type GID struct {
	Index  int    `json:"index"`  // the position in the table, which may have holes
	GID    string `json:"gid"`    // written as an IPv6 address, "::ffff:10.0.0.1" for one made from IPv4
	Type   string `json:"type"`   // "IB", "RoCE v1" or "RoCE v2", "" if unknown
	Netdev string `json:"netdev"` // the network interface it belongs to, "" if there is none
}

// Probe examines every device.
func Probe(c Config) Report {
	t := newTree(c.Root)
	t.read, t.brief, t.netdevs = c.read, c.Brief, c.netdevs
	if t.netdevs == nil {
		t.netdevs = t.names("sys/class/net")
	}
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
	r.resolve(t.netdevs)
	r.Findings = append(r.Findings, t.findings(r)...)
	return r
}

func (d *Device) add(v *verbsAnswer) {
	d.Attributes = &v.device
	for i := range d.Ports {
		if p := &d.Ports[i]; p.Port <= len(v.ports) {
			p.Attributes = v.ports[p.Port-1]
		}
	}
}

func errnoName(err error) string {
	errno, ok := errors.AsType[syscall.Errno](err)
	switch {
	case err == nil:
		return ""
	case ok:
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
	reasonWrongNode               // the node belongs to another device
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
	_, wrong := errors.AsType[errWrongNode](d.open)
	switch err := d.open; {
	case !d.visible:
		return reasonHidden
	case d.Verbs == "":
		return reasonNoVerbs
	case err == nil:
		return reasonNone
	case wrong:
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
