package rdma

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Severities of a [Finding].
const (
	SeverityError   = "error"   // something cannot be used
	SeverityWarning = "warning" // something may fail or be slow
	SeverityInfo    = "info"    // worth knowing
)

// Finding is one problem or fact.
type Finding struct {
	Severity string `json:"severity"` // SeverityError, SeverityWarning or SeverityInfo
	Device   string `json:"device"`   // its name, "" if the finding is about all devices
	What     string `json:"what"`     // one sentence
	Fix      string `json:"fix"`      // what to do, "" if nothing can be done
}

// Advice that several findings share. Sources: the reference of docker run, Kubernetes' RDMA shared device and SR-IOV
// plugins, extraContainerOptions in OpenPAI's job protocol.
const (
	fixNode = "pass the device in: docker run --device=/dev/infiniband, a Kubernetes resource of the RDMA device " +
		"plugin, or OpenPAI's extraContainerOptions.infiniband: true for every task role"
	fixMemlock = "docker run --ulimit memlock=-1 --cap-add=IPC_LOCK, IPC_LOCK in the Kubernetes securityContext, " +
		"or LimitMEMLOCK=infinity for the container runtime"
	fixNetwork = "run with the host's network, or give the container its own virtual function or macvlan interface"
	fixPeer    = "docker run --cap-add=SYS_PTRACE, or SYS_PTRACE in the Kubernetes securityContext; " +
		"without it Open MPI copies twice between the ranks of one host"
	fixDirect = "Intel MPI 5 only: I_MPI_FABRICS=shm:dapl I_MPI_DAPL_PROVIDER=ofa-v2-ib0 I_MPI_DYNAMIC_CONNECTION=0, " +
		"and /etc/dat.conf of the host in the container"
)

type findings []Finding

// add appends a finding about the device, or about all devices. The sentence is formatted as by fmt.Sprintf.
func (fs *findings) add(severity, fix, format string, args ...any) {
	*fs = append(*fs, Finding{Severity: severity, What: fmt.Sprintf(format, args...), Fix: fix})
}

// findings returns what a report shows once its ports are resolved.
func (t tree) findings(r Report) []Finding {
	var fs findings
	openable, usable := false, false
	for i := range r.Devices {
		d := &r.Devices[i]
		openable = openable || d.Openable
		for _, f := range d.findings(r.NetnsMode, t.netdevs) {
			f.Device = d.Name
			fs = append(fs, f)
		}
		for _, p := range d.Ports {
			usable = usable || p.Usable && p.Fabric <= KindRoCE
		}
	}
	if len(r.Devices) == 0 {
		// librdmacm's node is there as soon as the kernel's module rdma_ucm is loaded, also on a machine without a
		// device (drivers/infiniband/core/ucma.c).
		nodes := slices.DeleteFunc(t.names("dev/infiniband"), func(name string) bool { return name == "rdma_cm" })
		switch {
		case r.NetworkDirect:
		case len(nodes) > 0:
			fs.add(SeverityError, fixNetwork, "/dev/infiniband holds %s, but /sys shows no device: "+
				"they are in another network namespace, or /sys is not the host's", strings.Join(nodes, ", "))
		default:
			fs.add(SeverityInfo, "", "no verbs devices: MPI and NCCL will use TCP")
		}
	}
	if l := r.Limits; openable && !l.unlimited() {
		severity, what := SeverityWarning, "may be too little for large buffers"
		if !l.enough() {
			severity, what = SeverityError, "is too little to register buffers (ibv_reg_mr: Cannot allocate memory)"
		}
		fs.add(severity, fixMemlock, "locked memory is limited to %d KiB, which %s", l.Memlock>>10, what)
	}
	if openable && !t.exists("dev/infiniband/rdma_cm") {
		fs.add(SeverityInfo, fixNode,
			"/dev/infiniband/rdma_cm is not in this container: programs that connect through librdmacm fail")
	}
	if usable && r.GPUs > 0 && r.GPUDirect == "" {
		severity, what := SeverityWarning, "GPU data is copied through the host's memory"
		if r.DMABuf {
			severity, what = SeverityInfo, "NICs reach GPU memory only if its driver exports it by dmabuf"
		}
		fs.add(severity, "modprobe nvidia_peermem on the host", "no peer memory module is loaded: %s", what)
	}
	if r.NetworkDirect {
		fs.add(SeverityWarning, fixDirect,
			"Azure's Network Direct, from before SR-IOV: verbs, UCX and NCCL cannot use it")
	}
	if r.PeerMemory == "denied" {
		fs.add(SeverityWarning, fixPeer, "processes may not read each other's memory (process_vm_readv: "+
			"Operation not permitted), which MPI does between the ranks of one host")
	}
	return fs
}

// findings returns the findings about one device. The caller sets their Device.
func (d *Device) findings(netnsMode string, netdevs []string) (fs findings) {
	if !d.visible {
		fs.add(SeverityError, fixNetwork,
			"%s belongs to %s, which is not visible here: it is in another network namespace", d.Verbs, d.Name)
		return fs
	}
	if d.NodeGUID == "" && len(d.Ports) == 0 {
		fs.add(SeverityWarning, "", "the device is listed, but nothing about it can be read")
		return fs
	}
	if what, fix := d.openProblem(netnsMode); what != "" {
		fs.add(SeverityError, fix, "%s", what)
	}
	if what, fix := d.portProblem(); what != "" {
		fs.add(SeverityWarning, fix, "%s", what)
	}
	for i := range d.Ports {
		if p := &d.Ports[i]; p.active() {
			p.addFindings(&fs, netdevs)
		}
	}
	return fs
}

// openProblem says why a device's node cannot be opened.
func (d *Device) openProblem(netnsMode string) (what, fix string) {
	path := nodeDir + d.Verbs
	switch d.reasonOf(netnsMode) {
	case reasonNone:
		return "", ""
	case reasonNoVerbs:
		return "the kernel offers no verbs interface for the device", "load ib_uverbs on the host"
	case reasonAbsent:
		return path + " is not in this container", fixNode
	case reasonHidden:
		return path + " belongs to another network namespace (rdma system: netns exclusive)", fixNetwork
	case reasonForbidden:
		what = path + " may not be opened: the container runtime forbids the device"
		if netnsMode != "shared" {
			what += ", or it is in another network namespace"
		}
		return what, fixNode
	case reasonMode:
		return path + " may not be opened by this user", "chmod 0666 the node on the host, or run as root"
	case reasonGone:
		return path + " has no device behind it: the device was removed, or its driver restarted",
			"restart the container"
	case reasonWrongNode:
		return path + " is not the node of this device: " + d.open.Error(), fixNode
	}
	return fmt.Sprintf("%s cannot be opened: %v", path, d.open), fixNode
}

// portProblem says why no port is active.
func (d *Device) portProblem() (what, fix string) {
	var states []string
	fix = "check the cable and the switch"
	for i := range d.Ports {
		p := &d.Ports[i]
		if p.active() {
			return "", ""
		}
		state := cmp.Or(p.State, "in an unknown state")
		if p.PhysState != "" {
			state += " (" + p.PhysState + ")"
		}
		if p.State == "INIT" {
			fix = "the port waits for a subnet manager: start one, or check that it reaches this port"
		}
		states = append(states, fmt.Sprintf("port %d is %s", p.Port, state))
	}
	if len(states) == 0 {
		return "the device has no ports", ""
	}
	if d.software || d.Protocol == "roce" {
		fix = "set the network interface up: ip link set dev NAME up"
	}
	return "no active port: " + strings.Join(states, ", "), fix
}

// addFindings appends the findings about an active port.
func (p *Port) addFindings(fs *findings, netdevs []string) {
	add := func(severity, fix, format string, args ...any) {
		fs.add(severity, fix, "port %d "+format, append([]any{p.Port}, args...)...)
	}
	switch p.Fabric {
	case KindInfiniBand:
		switch {
		case p.LID == 0 || p.SMLID == 0:
			add(SeverityWarning, "check the subnet manager",
				"is active, but has no address from a subnet manager (lid %d, sm_lid %d)", p.LID, p.SMLID)
		case p.RateGbps == 10 && p.PhysState == "LinkUp":
			// rate_show in drivers/infiniband/core/sysfs.c reports SDR for speeds that the kernel does not know.
			add(SeverityInfo, "check the rate on the switch; a cable may be bad",
				"reports 10 Gb/sec (4X SDR), as kernels do for speeds that they do not know")
		}
	case KindEFA:
		add(SeverityInfo, "", "is Amazon's EFA: only libfabric's efa provider can use it, "+
			"and NCCL needs the aws-ofi-nccl plugin")
	case KindNone:
		add(SeverityWarning, "",
			"is neither InfiniBand nor Ethernet, but %q: verbs programs cannot use it", p.LinkLayer)
	case KindRoCE, KindSoftware:
		if what, fix := p.addressProblem(netdevs); what != "" {
			add(SeverityWarning, fix, "%s", what)
		}
	}
	if p.Fabric == KindSoftware {
		add(SeverityInfo, "", "is software RDMA, which is slower than TCP: jobs use it only with --rdma require")
	}
}

// addressProblem says what is wrong with the GIDs of an active port on Ethernet.
func (p *Port) addressProblem(netdevs []string) (what, fix string) {
	var foreign []string
	for _, g := range p.GIDs {
		if !g.here(netdevs) && !slices.Contains(foreign, g.Netdev) {
			foreign = append(foreign, g.Netdev)
		}
	}
	switch {
	case len(p.GIDs) == 0:
		return "is active, but has no GID", "give its network interface an IP address"
	case p.settled(netdevs):
		return "", ""
	case p.reachable(netdevs):
		return "has addresses of RoCE v1 only: NCCL asks for RoCE v2, and routers do not forward v1",
			"check the port's RoCE mode on the host (cma_roce_mode)"
	case len(foreign) > 0:
		// In the kernel's shared mode every container sees all GIDs of the host, even those of other containers'
		// interfaces.
		names := strings.Join(foreign, ", ")
		return "has only GIDs of the network interface " + names + ", which is not in this container", fixNetwork
	}
	return "has link-local GIDs only", "give its network interface an IP address"
}

// Worst returns the most severe finding that stands in the way of a device, the zero Finding if there is none.
func (r Report) Worst() (worst Finding) {
	for _, severity := range []string{SeverityError, SeverityWarning} {
		for _, f := range r.Findings {
			if f.Severity == severity && f.Fix != fixPeer {
				return f
			}
		}
	}
	return worst
}
