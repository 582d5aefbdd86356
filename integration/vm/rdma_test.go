package vm

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/integration/sample"
	"github.com/paiinit/paiinit/integration/vm/wire"
	"github.com/paiinit/paiinit/rdma"
)

// probe runs paiinit rdma inside the machine and returns its report.
func (m machine) probe(c wire.Command) (rdma.Report, wire.Result) {
	m.t.Helper()
	c.Args = []string{"paiinit", "rdma", "--json"}
	r := m.run(c)
	var report rdma.Report
	require.NoError(m.t, json.Unmarshal([]byte(r.Stdout), &report), "%+v", r)
	return report, r
}

func whats(r rdma.Report) string {
	var all []string
	for _, f := range r.Findings {
		all = append(all, f.Severity+": "+f.What)
	}
	return strings.Join(all, "\n")
}

// TestDevice checks the report on a verbs device of a real kernel. All subtests share one machine.
func TestDevice(t *testing.T) {
	sample.OneIn(t, 2)
	m := boot(t, requireKit(t), nil)
	m.must(`
		ip link set lo up
		ip addr add 10.0.0.1/24 dev dummy0
		ip link set dummy0 up
		rdma link add rxe0 type rxe netdev dummy0`)

	t.Run("equals ibv_devinfo", func(t *testing.T) { m := machine{t, m.Machine}; compare(t, m) })

	t.Run("no node", func(t *testing.T) {
		r, result := machine{t, m.Machine}.probe(wire.Command{Hide: []string{"/dev/infiniband"}})
		require.Equal(t, 69, result.Status, result.Stderr)
		require.Equal(t, "ENOENT", r.Devices[0].OpenError)
		require.Contains(t, whats(r), "error: /dev/infiniband/uverbs0 is not in this container")
	})
	t.Run("mode", func(t *testing.T) {
		m := machine{t, m.Machine}
		r, result := m.probe(wire.Command{UID: 1000})
		require.Equal(t, "", r.Devices[0].OpenError, "devtmpfs gives all users access")
		require.Contains(t, whats(r), "error: locked memory is limited to 8192 KiB",
			"the kernel's default, without CAP_IPC_LOCK")
		require.Equal(t, 69, result.Status)

		m.must("guest chmod 600 /dev/infiniband/uverbs0")
		r, result = m.probe(wire.Command{UID: 1000})
		m.must("guest chmod 666 /dev/infiniband/uverbs0")
		require.Equal(t, "EACCES", r.Devices[0].OpenError)
		require.Contains(t, whats(r), "error: /dev/infiniband/uverbs0 may not be opened by this user")
		require.Equal(t, 69, result.Status)
	})
	t.Run("memlock", func(t *testing.T) {
		m := machine{t, m.Machine}
		r, result := m.probe(wire.Command{UID: 1000, Memlock: 64 << 10})
		require.Equal(t, rdma.Limits{Memlock: 64 << 10}, r.Limits)
		require.Contains(t, whats(r), "error: locked memory is limited to 64 KiB")
		require.Equal(t, "memlock too low", r.Devices[0].Ports[0].Why)
		require.Equal(t, 69, result.Status)

		r, result = m.probe(wire.Command{Memlock: 64 << 10})
		require.True(t, r.Devices[0].Ports[0].Usable, "root has CAP_IPC_LOCK")
		require.Zero(t, result.Status)
	})
	t.Run("port down", func(t *testing.T) {
		m := machine{t, m.Machine}
		m.must("ip link set dummy0 down")
		r, result := m.probe(wire.Command{})
		m.must("ip link set dummy0 up")
		require.Equal(t, "DOWN", r.Devices[0].Ports[0].State)
		require.Contains(t, whats(r), "no active port: port 1 is DOWN")
		require.Equal(t, 69, result.Status)
		r, _ = m.probe(wire.Command{})
		require.Equal(t, "ACTIVE", r.Devices[0].Ports[0].State)
	})
	t.Run("peer memory", func(t *testing.T) {
		m := machine{t, m.Machine}
		yama := func(scope string) {
			write := "echo " + scope + " > /proc/sys/kernel/yama/ptrace_scope"
			r := m.run(wire.Command{Args: []string{"sh", "-c", write}})
			require.Zero(t, r.Status, r.Stderr)
		}
		r, _ := m.probe(wire.Command{UID: 1000})
		require.Equal(t, "allowed", r.PeerMemory)
		yama("2") // attaching to another process needs CAP_SYS_PTRACE
		r, _ = m.probe(wire.Command{UID: 1000})
		root, _ := m.probe(wire.Command{})
		yama("0")
		require.Equal(t, "denied", r.PeerMemory)
		require.Contains(t, whats(r),
			"warning: processes may not read each other's memory (process_vm_readv: Operation not permitted)")
		require.Equal(t, "allowed", root.PeerMemory)
	})
	t.Run("foreign namespace, shared", func(t *testing.T) {
		r, result := machine{t, m.Machine}.probe(wire.Command{NewNetwork: true, FreshSys: true})
		require.Equal(t, 69, result.Status)
		require.Contains(t, whats(r),
			"warning: port 1 has only GIDs of the network interface dummy0, which is not in this container")
		require.Equal(t, "shared", r.NetnsMode)
		require.Len(t, r.Devices, 1)
		require.True(t, r.Devices[0].Openable)
		require.Equal(t, "dummy0", r.Devices[0].Ports[0].GIDs[0].Netdev, "an interface of another namespace")
	})
	t.Run("foreign namespace, exclusive", func(t *testing.T) {
		m := machine{t, m.Machine}
		m.must(`
			rdma link delete rxe0
			rdma system set netns exclusive
			rdma link add rxe0 type rxe netdev dummy0`)
		r, _ := m.probe(wire.Command{})
		require.Equal(t, "exclusive", r.NetnsMode)
		require.True(t, r.Devices[0].Ports[0].Usable, "usable in its own namespace")

		r, result := m.probe(wire.Command{NewNetwork: true, FreshSys: true})
		require.Equal(t, 69, result.Status)
		require.Contains(t, whats(r),
			"error: uverbs0 belongs to rxe0, which is not visible here: it is in another network namespace")

		r, result = m.probe(wire.Command{NewNetwork: true})
		require.Equal(t, 69, result.Status)
		require.Equal(t, "EPERM", r.Devices[0].OpenError)
		require.Contains(t, whats(r), "error: /dev/infiniband/uverbs0 belongs to another network namespace",
			"the /sys of the first namespace still shows the device")
	})
}

// compare compares every field that both ibv_devinfo -v and paiinit print.
func compare(t *testing.T, m machine) {
	report, result := m.probe(wire.Command{})
	require.Zero(t, result.Status, result.Stderr)
	require.Len(t, report.Devices, 1)
	d := report.Devices[0]
	require.Len(t, d.Ports, 1)
	p := d.Ports[0]
	require.NotNil(t, d.Attributes)
	require.NotNil(t, p.Attributes)

	text := m.must("ibv_devinfo -v")
	fields := make(map[string]string)
	var gids []string
	for line := range strings.Lines(text) {
		name, value, found := strings.Cut(strings.TrimSpace(line), ":")
		switch value = strings.TrimSpace(value); {
		case strings.HasPrefix(name, "GID["):
			gids = append(gids, value)
		case found:
			fields[name] = value
		}
	}
	compared := 0
	same := func(name, ours string) {
		t.Helper()
		theirs, ok := fields[name]
		require.True(t, ok, "ibv_devinfo prints no %s", name)
		require.Equal(t, theirs, ours, name)
		compared++
	}
	// Numbers from the device. The JSON tags are ibv_devinfo's names, except some of the port.
	for field, number := range numbers(t, d.Attributes) {
		same(field, likeTheirs(fields[field], number))
	}
	names := map[string]string{"lid": "port_lid", "lmc": "port_lmc"}
	for field, number := range numbers(t, p.Attributes) {
		switch name, renamed := names[field]; {
		case renamed:
			same(name, likeTheirs(fields[name], number))
		case field == "gids":
			require.EqualValues(t, len(gids), number)
		case field == "link_layer":
			require.EqualValues(t, 2, number) // enum rdma_link_layer: Ethernet
		default:
			same(field, likeTheirs(fields[field], number))
		}
	}
	same("node_guid", d.Attributes.NodeGUID)
	same("sys_image_guid", d.Attributes.SysImageGUID)

	// Values from /sys.
	same("hca_id", d.Name)
	same("node_guid", d.NodeGUID)
	same("sys_image_guid", d.SysImageGUID)
	same("link_layer", p.LinkLayer)
	require.Equal(t, "PORT_"+p.State, strings.Fields(fields["state"])[0])
	require.Equal(t, strings.ToUpper(p.PhysState), strings.ReplaceAll(strings.Fields(fields["phys_state"])[0], "_", ""))
	same("port_lid", fmt.Sprint(p.LID))
	same("sm_lid", fmt.Sprint(p.SMLID))
	same("port_cap_flags", fmt.Sprintf("0x%08x", p.CapMask))
	require.Equal(t, strconv.Itoa(len(p.PKeys)), fields["pkey_tbl_len"])
	var ours []string
	for _, g := range p.GIDs {
		ours = append(ours, g.GID+", "+g.Type)
	}
	require.Equal(t, gids, ours)
	var width, speed float64
	_, err := fmt.Sscanf(fields["active_width"], "%fX", &width)
	require.NoError(t, err)
	_, err = fmt.Sscanf(fields["active_speed"], "%f Gbps", &speed)
	require.NoError(t, err)
	require.Equal(t, width*speed, p.RateGbps)

	// Values from RDMA netlink.
	require.Equal(t, "shared", report.NetnsMode)
	require.Equal(t, "roce", d.Protocol)
	require.Equal(t, "231:192", d.VerbsDev)
	require.Equal(t, rdma.KindSoftware, p.Fabric)
	require.True(t, p.Usable)
	require.GreaterOrEqual(t, compared, 50)
	t.Logf("compared %d fields", compared)
}

// numbers returns the fields of v that are numbers, by their JSON names.
func numbers(t *testing.T, v any) map[string]uint64 {
	b, err := json.Marshal(v)
	require.NoError(t, err)
	var raw map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(b, &raw))
	all := make(map[string]uint64)
	for name, value := range raw {
		if n, err := strconv.ParseUint(string(value), 10, 64); err == nil {
			all[name] = n
		}
	}
	require.NotEmpty(t, all)
	return all
}

// likeTheirs formats a number like ibv_devinfo's value theirs: "0x0", "0x00", "1024", or with words, as "PORT_ACTIVE
// (4)" for 4 and "4096 (5)" for 4096 or 5.
func likeTheirs(theirs string, n uint64) string {
	if m := regexp.MustCompile(`^(\S.*) \((\d+)\)$`).FindStringSubmatch(theirs); m != nil {
		if m[1] == strconv.FormatUint(n, 10) || m[2] == strconv.FormatUint(n, 10) {
			return theirs
		}
		return strconv.FormatUint(n, 10)
	}
	if digits, hex := strings.CutPrefix(theirs, "0x"); hex {
		return fmt.Sprintf("0x%0*x", len(digits), n)
	}
	return strconv.FormatUint(n, 10)
}
