// Package rdma says what verbs hardware this container can really use, and why not.
//
// A device that the host has is of no use here unless its node was passed in, may be opened, has an active port, and
// enough memory can be locked for it; jobs that find out themselves do so minutes later, with messages like "Cannot
// allocate memory", or silently fall back to TCP. [Probe] reads what the kernel tells in /sys and /dev, tries the
// nodes, and turns it into a [Report] with advice. [Summary] is the part of a report that fits into a gossip record.
//
// The package needs no verbs library and no cgo, never changes anything, and never fails as a whole: a device that is
// half visible, a file that cannot be read, or a value that makes no sense costs that value and nothing else. It does
// not load modules, does not measure bandwidth, and does not judge what other hosts have.
package rdma

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Config says where to look.
type Config struct {
	// Root is the container's root directory, os.DirFS("/"), or a captured tree with sys/ and dev/ in it. nil: nothing is
	// there.
	Root fs.FS
	// Open tries the device node at an absolute path and returns the errno; see [OpenNode]. nil: a node counts as usable if
	// it exists (captured trees).
	Open func(path string) error
	// Limits are this process's; see [SystemLimits].
	Limits Limits
	// Netdevs are the network interfaces of this network namespace. nil: those of sys/class/net in Root.
	Netdevs []string
}

// Limits are the two things that decide how much memory a verbs program may pin.
type Limits struct {
	// Memlock is the soft RLIMIT_MEMLOCK in bytes, -1 for unlimited.
	Memlock int64 `json:"memlock"`
	// IPCLock says that CAP_IPC_LOCK is in the effective set: the limit does not count then.
	IPCLock bool `json:"ipc_lock"`
}

// Report is what Probe found. Its JSON is that of `paiinit rdma --json`.
type Report struct {
	// Devices are ordered by name, numbers by value.
	Devices []Device `json:"devices"`
	Limits  Limits   `json:"limits"`
	// GPUDirect is the kernel module that lets NICs reach GPU memory: "nvidia_peermem", "nv_mem" or "nv_mem_nc", "" if none
	// is loaded. NCCL looks for the same three (net_ib/gdr.cc).
	GPUDirect string    `json:"gpudirect"`
	Findings  []Finding `json:"findings"`
}

// Device is one verbs device.
type Device struct {
	// Name is the kernel's, for example "mlx5_0". The same name may be another device on the next host.
	Name string `json:"name"`
	// Driver is the name of the parent's driver, "" for software devices.
	Driver string `json:"driver"`
	// Firmware is fw_ver, "" where the driver has none.
	Firmware string `json:"firmware"`
	// NodeGUID is in the kernel's form, "a088:c203:0074:cfda".
	NodeGUID string `json:"node_guid"`
	// Verbs is the name of the character device below /dev/infiniband, "" if the kernel offers none.
	Verbs string `json:"verbs"`
	// Openable says that it could be opened for reading and writing.
	Openable bool   `json:"openable"`
	Ports    []Port `json:"ports"`

	open    error // why it is not Openable
	visible bool  // below sys/class/infiniband
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
	// PKeys are the valid partition keys in table order, in the form "0xffff".
	PKeys []string `json:"pkeys"`
	// GIDs are those that are not zero.
	GIDs []GID `json:"gids"`
}

// GID is one entry of a port's GID table.
type GID struct {
	// Index is the place in the table; tables have holes.
	Index int `json:"index"`
	// GID is written as an IPv6 address, "::ffff:10.0.0.1" for one made from IPv4.
	GID string `json:"gid"`
	// Type is "IB", "RoCE v1" or "RoCE v2", "" if unknown.
	Type string `json:"type"`
	// Netdev is the network interface it belongs to, "" if there is none.
	Netdev string `json:"netdev"`
}

// Severities of a [Finding].
const (
	SeverityError   = "error"   // this cannot be used
	SeverityWarning = "warning" // this may fail or be slow
	SeverityInfo    = "info"    // worth knowing
)

// Finding is one thing that is wrong or worth knowing.
type Finding struct {
	// Severity is SeverityError, SeverityWarning or SeverityInfo.
	Severity string `json:"severity"`
	// Device is the device's name, "" if the finding is about all of them.
	Device string `json:"device"`
	// What is one sentence, Fix is what to do about it, "" if nothing can be done.
	What string `json:"what"`
	Fix  string `json:"fix"`
}

// Probe looks at every device.
func Probe(c Config) Report {
	t := tree{c.Root}
	r := Report{Devices: t.devices(), Limits: c.Limits, GPUDirect: t.gpuDirect(), Findings: []Finding{}}
	for i := range r.Devices {
		d := &r.Devices[i]
		if d.Verbs == "" {
			continue
		}
		d.open = t.node(d.Verbs, c.Open)
		d.Openable = d.open == nil
	}
	netdevs := c.Netdevs
	if netdevs == nil {
		netdevs = t.names("sys/class/net")
	}
	r.Findings = append(r.Findings, findings(r, netdevs)...)
	return r
}

// Advice that belongs to several findings. Docker: reference of `docker run`; Kubernetes: the RDMA shared device and
// SR-IOV plugins; OpenPAI: extraContainerOptions of its job protocol.
const (
	fixNode = "pass the device in: docker run --device=/dev/infiniband, a Kubernetes resource of the RDMA device plugin, " +
		"or OpenPAI's extraContainerOptions.infiniband: true for every task role"
	fixMemlock = "docker run --ulimit memlock=-1 --cap-add=IPC_LOCK, IPC_LOCK in the Kubernetes securityContext, or LimitMEMLOCK=infinity for the container runtime"
	fixNetwork = "run with the host's network, or give the container its own virtual function or macvlan interface"
)

// minMemlock is the limit of locked memory, in bytes, below which MPI and NCCL cannot register their buffers; 8 MiB, the
// default of current kernels, is known to be too little. Above it the job may still need more.
const minMemlock = 1 << 30

func (l Limits) unlimited() bool { return l.IPCLock || l.Memlock < 0 }
func (l Limits) enough() bool    { return l.unlimited() || l.Memlock >= minMemlock }

// findings judges a report.
func findings(r Report, netdevs []string) []Finding {
	if len(r.Devices) == 0 {
		return []Finding{{SeverityInfo, "", "no verbs devices: MPI and NCCL will use TCP", ""}}
	}
	var fs []Finding
	add := func(severity, device, what, fix string) {
		fs = append(fs, Finding{severity, device, what, fix})
	}
	openable := false
	for _, d := range r.Devices {
		openable = openable || d.Openable
		if !d.visible {
			add(SeverityError, d.Name, fmt.Sprintf("%s belongs to %s, which is not visible here: it is in another network namespace", d.Verbs, d.Name), fixNetwork)
			continue
		}
		if d.NodeGUID == "" && len(d.Ports) == 0 {
			add(SeverityWarning, d.Name, "the device is listed, but nothing about it can be read", "")
			continue
		}
		if what, fix := d.openProblem(); what != "" {
			add(SeverityError, d.Name, what, fix)
		}
		if what := d.portProblem(); what != "" {
			add(SeverityWarning, d.Name, what, "check the cable and the switch; a port in INIT waits for a subnet manager")
		}
		for _, p := range d.Ports {
			if what, fix := p.addressProblem(netdevs); what != "" {
				add(SeverityWarning, d.Name, what, fix)
			}
		}
	}
	if l := r.Limits; openable && !l.unlimited() {
		severity, what := SeverityWarning, "may be too little for large buffers"
		if !l.enough() {
			severity, what = SeverityError, "is too little to register buffers"
		}
		add(severity, "", fmt.Sprintf("locked memory is limited to %d KiB, which %s", l.Memlock>>10, what), fixMemlock)
	}
	return fs
}

// openProblem explains why a device's node cannot be opened (drivers/infiniband/core/uverbs_main.c, ib_uverbs_open).
func (d Device) openProblem() (what, fix string) {
	if d.Verbs == "" {
		return "the kernel offers no verbs interface for the device", "load ib_uverbs on the host"
	}
	path := nodeDir + d.Verbs
	switch reasonOf(d.open) {
	case ReasonNone:
		return "", ""
	case ReasonAbsent:
		return path + " is not in this container", fixNode
	case ReasonForbidden:
		return path + " may not be opened: the container runtime forbids the device, or it is in another network namespace", fixNode
	case ReasonMode:
		return path + " may not be opened by this user", "chmod 0666 the node on the host, or run as root"
	case ReasonGone:
		return path + " leads to no device: it was removed or its driver was restarted", "restart the container"
	case ReasonWrongNode:
		return path + " is not the node of this device: " + d.open.Error(), fixNode
	}
	return fmt.Sprintf("%s cannot be opened: %v", path, d.open), fixNode
}

// portProblem says why no port is active.
func (d Device) portProblem() string {
	var states []string
	for _, p := range d.Ports {
		if p.active() {
			return ""
		}
		state := cmp.Or(p.State, "in an unknown state")
		if p.PhysState != "" {
			state += " (" + p.PhysState + ")"
		}
		states = append(states, fmt.Sprintf("port %d is %s", p.Port, state))
	}
	if len(states) == 0 {
		return "the device shows no ports"
	}
	return "no active port: " + strings.Join(states, ", ")
}

func (p Port) active() bool { return p.State == "ACTIVE" || p.State == "ACTIVE_DEFER" }

// addressProblem looks for a GID by which an active port can be reached.
func (p Port) addressProblem(netdevs []string) (what, fix string) {
	if !p.active() {
		return "", ""
	}
	switch p.LinkLayer {
	case "InfiniBand":
		if p.LID == 0 || p.SMLID == 0 {
			return fmt.Sprintf("port %d is active, but has no address from a subnet manager (lid %d, sm_lid %d)", p.Port, p.LID, p.SMLID), "check the subnet manager"
		}
	case "Ethernet":
		// In the kernel's shared mode the GIDs of the host show in every container, those of foreign interfaces included.
		var foreign []string
		for _, g := range p.GIDs {
			if g.Netdev == "" || slices.Contains(netdevs, g.Netdev) {
				continue
			}
			if !slices.Contains(foreign, g.Netdev) {
				foreign = append(foreign, g.Netdev)
			}
		}
		if len(foreign) > 0 {
			return fmt.Sprintf("port %d has GIDs of the network interface %s, which is not in this container", p.Port, strings.Join(foreign, ", ")), fixNetwork
		}
		if len(p.GIDs) == 0 {
			return fmt.Sprintf("port %d is active, but has no GID", p.Port), "give its network interface an IP address"
		}
	default:
		return fmt.Sprintf("port %d is neither InfiniBand nor Ethernet, but %q: verbs programs cannot use it", p.Port, p.LinkLayer),
			"on AWS: use libfabric's efa provider"
	}
	return "", ""
}

// Reason is why no port can be used.
type Reason uint8

// The reasons, in the order in which they stand in the way.
const (
	ReasonNone      Reason = iota // usable, or nothing there
	ReasonHidden                  // the device is in another network namespace
	ReasonNoVerbs                 // the kernel offers no verbs interface
	ReasonAbsent                  // ENOENT: the node was not passed in
	ReasonForbidden               // EPERM: device cgroup or other network namespace
	ReasonMode                    // EACCES: file mode
	ReasonGone                    // ENXIO, EIO: removed or reset
	ReasonWrongNode               // the node is that of another device
	ReasonOpen                    // any other error
	ReasonPort                    // no active port
	ReasonLinkLayer               // an active port, but neither InfiniBand nor Ethernet
	ReasonMemlock                 // too little memory can be locked
	reasons                       // how many there are
)

// String returns a few words for people.
func (r Reason) String() string {
	switch r {
	case ReasonNone:
		return "nothing in the way"
	case ReasonHidden:
		return "other network namespace"
	case ReasonNoVerbs:
		return "no verbs interface"
	case ReasonAbsent:
		return "no device node"
	case ReasonForbidden:
		return "device not permitted"
	case ReasonMode:
		return "device not accessible to this user"
	case ReasonGone:
		return "device gone"
	case ReasonWrongNode:
		return "wrong device node"
	case ReasonOpen:
		return "device cannot be opened"
	case ReasonPort:
		return "no active port"
	case ReasonLinkLayer:
		return "unknown link layer"
	case ReasonMemlock:
		return "memlock"
	}
	return "reason " + strconv.Itoa(int(r))
}

// errWrongNode is a node whose device number is not that of the device.
type errWrongNode struct{ node, device string }

func (e errWrongNode) Error() string {
	return fmt.Sprintf("it is %s, the device is %s", e.node, e.device)
}

func reasonOf(err error) Reason {
	var wrong errWrongNode
	switch {
	case err == nil:
		return ReasonNone
	case errors.As(err, &wrong):
		return ReasonWrongNode
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ENOTDIR), errors.Is(err, fs.ErrNotExist):
		return ReasonAbsent
	case errors.Is(err, syscall.EPERM):
		return ReasonForbidden
	case errors.Is(err, syscall.EACCES):
		return ReasonMode
	case errors.Is(err, syscall.ENXIO), errors.Is(err, syscall.ENODEV), errors.Is(err, syscall.EIO):
		return ReasonGone
	}
	return ReasonOpen
}
