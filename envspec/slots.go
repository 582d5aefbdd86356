package envspec

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

// countSlots sets the number of processes for this container: the explicit one, the scheduler's slots or GPUs, the
// device nodes, else the CPUs.
func countSlots(r *reader, job *Job) {
	devices, from := nvidiaDevices(r)
	if devices == 0 {
		if amd, amdFrom := amdDevices(r); amd > 0 {
			devices, from = amd, amdFrom
		}
	}
	job.GPUs = devices
	if n := r.ownGPUs; n > 0 {
		if r.entries("/dev") != nil && devices != n {
			r.warn("%s gives %d GPUs, but this container sees %d (%s)", r.sources["gpus"], n, devices, from)
		}
		job.GPUs = n
	} else {
		r.sources["gpus"] = from
	}
	var granted string
	job.CPUs, granted = countCPUs(r)
	told := r.slotsOf(job.Role, job.Index)
	slots, v, ok := r.number(0, maxTasks, "PAIINIT_SLOTS")
	switch {
	case ok:
		job.Slots, job.LaunchOnly = slots, slots == 0
		r.note("slots", v)
	case job.LaunchOnly:
		job.Slots = 0
		r.sources["slots"] = "launch-only"
	case r.ownSlots.from.name != "":
		job.Slots, job.LaunchOnly = r.ownSlots.n, r.ownSlots.n == 0
		r.note("slots", r.ownSlots.from)
	case told.from.name != "":
		job.Slots = told.n
		r.note("slots", told.from)
	case job.GPUs > 0:
		job.Slots = job.GPUs
		r.sources["slots"] = r.sources["gpus"]
	default:
		job.Slots, r.sources["slots"] = job.CPUs, granted
	}
}

// devices counts the entries of a directory that are prefix and a number.
func (r *reader) devices(dir, prefix string) (n int) {
	for _, name := range r.entries(dir) {
		number, ok := strings.CutPrefix(name, prefix)
		if ok && number != "" && strings.Trim(number, "0123456789") == "" {
			n++
		}
	}
	return n
}

// nvidiaDevices counts the NVIDIA devices that a process in this container can use. The nodes decide, and variables can
// only lower the number: the container toolkit may ignore them, and images set NVIDIA_VISIBLE_DEVICES=all everywhere.
func nvidiaDevices(r *reader) (int, string) {
	nodes := r.devices("/dev", "nvidia") // not nvidiactl, nvidia-uvm, nvidia-modeset, nvidia-caps
	from := "/dev/nvidia*"
	if nodes == 0 {
		return 0, from
	}
	// Unset, blank and "void" tell nothing, "all" means the nodes, and numbers are the host's.
	if v, ok := r.get("NVIDIA_VISIBLE_DEVICES"); ok && v.value != "void" && v.value != "all" {
		n, mig := 0, false
		for _, token := range strings.Split(v.value, ",") {
			token = clean(token)
			mig = mig || strings.HasPrefix(token, "MIG-") || strings.Contains(token, ":")
			if token != "" && token != "none" {
				n++
			}
		}
		// One device may be split into several MIG instances, each a device for CUDA.
		if mig || n < nodes {
			nodes, from = n, v.source()
		}
	}
	return narrow(r, nodes, from, "CUDA_VISIBLE_DEVICES")
}

// amdDevices counts AMD devices. Other drivers have render nodes too; only AMD's has /dev/kfd.
func amdDevices(r *reader) (int, string) {
	from := "/dev/dri/renderD*"
	if !slices.Contains(r.entries("/dev"), "kfd") {
		return 0, from
	}
	nodes := r.devices("/dev/dri", "renderD")
	for _, name := range []string{"ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "PAI_AMD_VISIBLE_DEVICES"} {
		nodes, from = narrow(r, nodes, from, name)
	}
	return nodes, from
}

// narrow applies a list of visible devices to n devices. The list ends at the first entry that is not a device.
func narrow(r *reader, n int, from, name string) (int, string) {
	value, set := r.vars[name]
	if !set {
		return n, from
	}
	valid := 0
	for _, token := range strings.Split(value, ",") {
		token = clean(token)
		// "", "-1" and old Slurm's "NoDevFiles" are not devices. Devices are numbers or UUIDs.
		i, err := strconv.Atoi(token)
		if err == nil && (i < 0 || i >= n && name != "PAI_AMD_VISIBLE_DEVICES") ||
			err != nil && !strings.Contains(token, "-") {
			break
		}
		valid++
	}
	if valid < n {
		return valid, name
	}
	return n, from
}

// countCPUs returns how many CPUs this container may use, at least 1: the affinity, limited by the cgroup's quota.
func countCPUs(r *reader) (int, string) {
	n, from := r.in.CPUs, "CPU affinity"
	quota, file := cpuQuota(r)
	if quota > 0 && (n <= 0 || quota < n) {
		n, from = quota, file
	}
	if n <= 0 {
		return 1, "default"
	}
	return n, from
}

// cpuQuota returns the cgroup's CPU quota, rounded up to whole CPUs; 0 means no quota.
// Sources: kernel Documentation/admin-guide/cgroup-v2.rst (cpu.max), Documentation/scheduler/sched-bwc.rst (v1).
func cpuQuota(r *reader) (int, string) {
	const v2 = "/sys/fs/cgroup/cpu.max"
	if text, ok := r.file(v2); ok {
		limit, period, _ := strings.Cut(clean(text), " ")
		return ceilDiv(limit, period), v2
	}
	for _, dir := range []string{"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"} {
		limit, ok := r.file(dir + "/cpu.cfs_quota_us")
		period, ok2 := r.file(dir + "/cpu.cfs_period_us")
		if ok && ok2 {
			return ceilDiv(clean(limit), clean(period)), dir + "/cpu.cfs_quota_us"
		}
	}
	return 0, ""
}

// ceilDiv returns limit/period rounded up, 0 if either is not a positive number ("max", "-1").
func ceilDiv(limit, period string) int {
	l, err := strconv.ParseInt(limit, 10, 64)
	p, err2 := strconv.ParseInt(period, 10, 64)
	if err != nil || err2 != nil || l <= 0 || p <= 0 {
		return 0
	}
	return int(min((l-1)/p+1, math.MaxInt32))
}
