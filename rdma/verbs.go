package rdma

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// verbsAnswer is what a device tells about itself.
type verbsAnswer struct {
	device Attributes
	ports  []*PortAttributes // from port 1; nil where a port does not answer
}

// Attributes are the attributes of a device; ibv_query_device(3) describes them.
type Attributes struct {
	NodeGUID             string `json:"node_guid"`
	SysImageGUID         string `json:"sys_image_guid"`
	VendorID             uint32 `json:"vendor_id"`
	VendorPartID         uint32 `json:"vendor_part_id"`
	HWVer                uint32 `json:"hw_ver"`
	PhysPortCount        uint8  `json:"phys_port_cnt"`
	MaxMRSize            uint64 `json:"max_mr_size"`
	PageSizeCap          uint64 `json:"page_size_cap"`
	MaxQP                uint32 `json:"max_qp"`
	MaxQPWR              uint32 `json:"max_qp_wr"`
	DeviceCapFlags       uint32 `json:"device_cap_flags"`
	MaxSGE               uint32 `json:"max_sge"`
	MaxSGERead           uint32 `json:"max_sge_rd"`
	MaxCQ                uint32 `json:"max_cq"`
	MaxCQE               uint32 `json:"max_cqe"`
	MaxMR                uint32 `json:"max_mr"`
	MaxPD                uint32 `json:"max_pd"`
	MaxQPReadAtomic      uint32 `json:"max_qp_rd_atom"`
	MaxQPInitReadAtomic  uint32 `json:"max_qp_init_rd_atom"`
	MaxResReadAtomic     uint32 `json:"max_res_rd_atom"`
	AtomicCap            uint32 `json:"atomic_cap"`
	MaxMW                uint32 `json:"max_mw"`
	MaxMcastGroups       uint32 `json:"max_mcast_grp"`
	MaxMcastQPAttach     uint32 `json:"max_mcast_qp_attach"`
	MaxTotalMcastAttach  uint32 `json:"max_total_mcast_qp_attach"`
	MaxAH                uint32 `json:"max_ah"`
	MaxSRQ               uint32 `json:"max_srq"`
	MaxSRQWR             uint32 `json:"max_srq_wr"`
	MaxSRQSGE            uint32 `json:"max_srq_sge"`
	MaxPKeys             uint16 `json:"max_pkeys"`
	LocalCAAckDelay      uint8  `json:"local_ca_ack_delay"`
	NumCompletionVectors uint32 `json:"num_comp_vectors"`
}

// PortAttributes are the attributes of a port; ibv_query_port(3) describes them.
type PortAttributes struct {
	State         uint8  `json:"state"`
	MaxMTU        int    `json:"max_mtu"`    // bytes
	ActiveMTU     int    `json:"active_mtu"` // bytes
	GIDTableLen   uint32 `json:"gid_tbl_len"`
	PortCapFlags  uint32 `json:"port_cap_flags"`
	PortCapFlags2 uint16 `json:"port_cap_flags2"`
	MaxMsgSize    uint32 `json:"max_msg_sz"`
	BadPKeys      uint32 `json:"bad_pkey_cntr"`
	QKeyViolated  uint32 `json:"qkey_viol_cntr"`
	PKeyTableLen  uint16 `json:"pkey_tbl_len"`
	LID           uint16 `json:"lid"`
	SMLID         uint16 `json:"sm_lid"`
	LMC           uint8  `json:"lmc"`
	MaxVL         uint8  `json:"max_vl_num"` // this and the following are codes
	SMSL          uint8  `json:"sm_sl"`
	SubnetTimeout uint8  `json:"subnet_timeout"`
	InitTypeReply uint8  `json:"init_type_reply"`
	ActiveWidth   uint8  `json:"active_width"`
	ActiveSpeed   uint8  `json:"active_speed"`
	PhysState     uint8  `json:"phys_state"`
	LinkLayer     uint8  `json:"link_layer"`
	GIDs          int    `json:"gids"` // entries in use, -1 if the kernel does not tell
}

// The ioctl interface of drivers/infiniband/core/uverbs_ioctl.c, from rdma/rdma_user_ioctl_cmds.h and
// ib_user_ioctl_cmds.h.
const (
	verbsIoctl = 0xc0181b01 // RDMA_VERBS_IOCTL, _IOWR(0x1b, 1, 24 bytes)

	objectDevice = 0

	methodInvokeWrite   = 0
	methodQueryPort     = 2
	methodGetContext    = 3
	methodQueryGIDTable = 5

	writeQueryDevice = 1 // IB_USER_VERBS_CMD_QUERY_DEVICE

	mandatory = 1 // UVERBS_ATTR_F_MANDATORY

	deviceSize   = 176 // struct ib_uverbs_query_device_resp
	portSize     = 48  // struct ib_uverbs_query_port_resp_ex
	gidEntrySize = 32  // struct ib_uverbs_gid_entry
	maxGIDs      = 4096
	maxPorts     = 16
)

// queryVerbs asks the device behind the node at path, whose driver is driver (enum rdma_driver_id). Drivers such as
// mlx5, which want data of their own when a context is created, return EINVAL: the device may still be fine.
func queryVerbs(path string, driver uint32) (*verbsAnswer, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", path, err)
	}
	defer func() { _ = unix.Close(fd) }()
	c := caller{fd: fd, driver: driver}
	defer c.pins.Unpin()

	vectors := c.buffer(4)
	if err := c.call(methodGetContext, out(0, vectors)); err != nil {
		return nil, fmt.Errorf("getting a context of %s: %w", path, err)
	}
	device := c.buffer(deviceSize)
	if err := c.call(methodInvokeWrite, in(0, 0, 8), out(1, device), in(2, writeQueryDevice, 8)); err != nil {
		return nil, fmt.Errorf("querying %s: %w", path, err)
	}
	v := &verbsAnswer{device: parseDevice(device)}
	v.device.NumCompletionVectors = binary.NativeEndian.Uint32(vectors)
	for n := 1; n <= min(int(v.device.PhysPortCount), maxPorts); n++ {
		port := c.buffer(portSize)
		var p *PortAttributes
		if c.call(methodQueryPort, in(0, uint64(n), 8), out(1, port)) == nil {
			p = parsePort(port)
		}
		v.ports = append(v.ports, p)
	}
	c.countGIDs(v.ports)
	return v, nil
}

// countGIDs asks for the GID tables of all ports in one call (Linux 5.10).
func (c *caller) countGIDs(ports []*PortAttributes) {
	size := 0
	for _, p := range ports {
		if p != nil {
			size += int(min(p.GIDTableLen, maxGIDs))
		}
	}
	if size == 0 {
		return
	}
	entries, count := c.buffer(size*gidEntrySize), c.buffer(8)
	if c.call(methodQueryGIDTable, in(0, gidEntrySize, 8), in(1, 0, 4), out(2, entries), out(3, count)) != nil {
		return
	}
	for _, p := range ports {
		if p != nil {
			p.GIDs = 0
		}
	}
	for i := range min(int(binary.NativeEndian.Uint64(count)), size) {
		n := int(binary.NativeEndian.Uint32(entries[i*gidEntrySize+20:]))
		if n >= 1 && n <= len(ports) && ports[n-1] != nil {
			ports[n-1].GIDs++
		}
	}
}

// caller makes calls to one device. The kernel gets the addresses of buffers as numbers, so they are pinned until
// Unpin.
type caller struct {
	fd     int
	driver uint32
	pins   runtime.Pinner
}

func (c *caller) buffer(size int) []byte {
	b := make([]byte, size)
	c.pins.Pin(&b[0])
	return b
}

// attribute is struct ib_uverbs_attr.
type attribute struct {
	id, size uint16
	data     uint64
}

// in returns an attribute that passes a value of at most 8 bytes to the kernel.
func in(id uint16, value uint64, size uint16) attribute { return attribute{id, size, value} }

// out returns an attribute for a buffer that the kernel fills.
func out(id uint16, b []byte) attribute {
	return attribute{id, uint16(len(b)), uint64(uintptr(unsafe.Pointer(&b[0])))}
}

// call calls a method of the device object.
func (c *caller) call(method uint16, attributes ...attribute) error {
	b := c.buffer(24 + 16*len(attributes))
	binary.NativeEndian.PutUint16(b[0:], uint16(len(b)))
	binary.NativeEndian.PutUint16(b[2:], objectDevice)
	binary.NativeEndian.PutUint16(b[4:], method)
	binary.NativeEndian.PutUint16(b[6:], uint16(len(attributes)))
	binary.NativeEndian.PutUint32(b[16:], c.driver)
	for i, a := range attributes {
		at := b[24+16*i:]
		binary.NativeEndian.PutUint16(at[0:], a.id)
		binary.NativeEndian.PutUint16(at[2:], a.size)
		binary.NativeEndian.PutUint16(at[4:], mandatory)
		binary.NativeEndian.PutUint64(at[8:], a.data)
	}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(c.fd), verbsIoctl, uintptr(unsafe.Pointer(&b[0])))
	if errno != 0 {
		return errno
	}
	return nil
}

// parseDevice reads struct ib_uverbs_query_device_resp of rdma/ib_user_verbs.h.
func parseDevice(b []byte) Attributes {
	u32 := func(at int) uint32 { return binary.NativeEndian.Uint32(b[at:]) }
	u64 := func(at int) uint64 { return binary.NativeEndian.Uint64(b[at:]) }
	return Attributes{
		NodeGUID:            guid(b[8:16]),
		SysImageGUID:        guid(b[16:24]),
		MaxMRSize:           u64(24),
		PageSizeCap:         u64(32),
		VendorID:            u32(40),
		VendorPartID:        u32(44),
		HWVer:               u32(48),
		MaxQP:               u32(52),
		MaxQPWR:             u32(56),
		DeviceCapFlags:      u32(60),
		MaxSGE:              u32(64),
		MaxSGERead:          u32(68),
		MaxCQ:               u32(72),
		MaxCQE:              u32(76),
		MaxMR:               u32(80),
		MaxPD:               u32(84),
		MaxQPReadAtomic:     u32(88),
		MaxResReadAtomic:    u32(96),
		MaxQPInitReadAtomic: u32(100),
		AtomicCap:           u32(108),
		MaxMW:               u32(120),
		MaxMcastGroups:      u32(132),
		MaxMcastQPAttach:    u32(136),
		MaxTotalMcastAttach: u32(140),
		MaxAH:               u32(144),
		MaxSRQ:              u32(156),
		MaxSRQWR:            u32(160),
		MaxSRQSGE:           u32(164),
		MaxPKeys:            binary.NativeEndian.Uint16(b[168:]),
		LocalCAAckDelay:     b[170],
		PhysPortCount:       b[171],
	}
}

// parsePort reads struct ib_uverbs_query_port_resp_ex of rdma/ib_user_ioctl_verbs.h.
func parsePort(b []byte) *PortAttributes {
	u16 := func(at int) uint16 { return binary.NativeEndian.Uint16(b[at:]) }
	u32 := func(at int) uint32 { return binary.NativeEndian.Uint32(b[at:]) }
	return &PortAttributes{
		PortCapFlags:  u32(0),
		MaxMsgSize:    u32(4),
		BadPKeys:      u32(8),
		QKeyViolated:  u32(12),
		GIDTableLen:   u32(16),
		PKeyTableLen:  u16(20),
		LID:           u16(22),
		SMLID:         u16(24),
		State:         b[26],
		MaxMTU:        mtu(b[27]),
		ActiveMTU:     mtu(b[28]),
		LMC:           b[29],
		MaxVL:         b[30],
		SMSL:          b[31],
		SubnetTimeout: b[32],
		InitTypeReply: b[33],
		ActiveWidth:   b[34],
		ActiveSpeed:   b[35],
		PhysState:     b[36],
		LinkLayer:     b[37],
		PortCapFlags2: u16(40),
		GIDs:          -1,
	}
}

// mtu decodes enum ib_mtu: 1 is 256 bytes, 5 is 4096.
func mtu(code uint8) int {
	if code < 1 || code > 5 {
		return 0
	}
	return 128 << code
}

// guid returns 8 bytes in the form of sysfs.
func guid(b []byte) string {
	n := binary.BigEndian.Uint64(b)
	return fmt.Sprintf("%04x:%04x:%04x:%04x", n>>48, n>>32&0xffff, n>>16&0xffff, n&0xffff)
}
