package inspect

import (
	"cmp"
	"fmt"
	"io/fs"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// System answers what only system calls tell about this container.
type System struct {
	Space    func(dir string) (total, free uint64, err error) // in bytes, of the file system
	Writable func(dir string) error
	Memlock  uint64 // the hard limit of locked memory in bytes, math.MaxUint64 = unlimited
	NoFile   uint64 // the hard limit of open files
	PID      int    // of this process
	Now      func() time.Time
	Built    time.Time // when this program was built; zero = unknown
}

const mib = 1 << 20

// gpus reports the GPUs that are in the container.
func (e *examination) gpus() Finding {
	const name = "gpus"
	nvidia := e.devices("dev", "nvidia")
	wanted := variable(e.Environ, "NVIDIA_VISIBLE_DEVICES")
	switch {
	case nvidia > 0 && !e.hasCUDA():
		return warning(name, fmt.Sprintf("%d /dev/nvidia*, but no libcuda.so.1: CUDA programs find no driver", nvidia),
			"NVIDIA_DRIVER_CAPABILITIES=compute,utility makes the container toolkit mount the driver")
	case nvidia > 0:
		return pass(name, fmt.Sprintf("%d NVIDIA%s%s", nvidia, e.usedGPUs(nvidia), e.driver()))
	case e.exists("dev/kfd"):
		n := e.devices("dev/dri", "renderD")
		return pass(name, fmt.Sprintf("%d AMD%s", n, e.usedGPUs(n)))
	case strings.Trim(wanted, "0123456789,") == "" && wanted != "" || strings.HasPrefix(wanted, "GPU-"):
		return warning(name, "NVIDIA_VISIBLE_DEVICES="+wanted+" asks for GPUs, but the container has no /dev/nvidia*",
			"run with NVIDIA's container runtime: docker run --gpus, or a nvidia.com/gpu resource in Kubernetes")
	case e.job.GPUs > 0:
		text := fmt.Sprintf("the scheduler gives %s, but the container has none", plural(e.job.GPUs, "GPU"))
		return warning(name, text, "")
	case wanted == "all":
		return pass(name, "none; NVIDIA_VISIBLE_DEVICES=all is set, as CUDA images do: docker run --gpus all "+
			"passes GPUs in")
	}
	return pass(name, "none")
}

// usedGPUs says how many of the GPUs the job uses, "" if it uses all.
func (e *examination) usedGPUs(devices int) string {
	if e.err != nil || e.job.GPUs == devices {
		return ""
	}
	return fmt.Sprintf(", of which the job uses %d", e.job.GPUs)
}

// driver returns the version of NVIDIA's driver, "" if it is unknown.
func (e *examination) driver() string {
	// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat ..."
	for _, word := range strings.Fields(e.read("proc/driver/nvidia/version")) {
		if strings.Trim(word, "0123456789.") == "" && strings.Contains(word, ".") {
			return ", driver " + word
		}
	}
	return ""
}

// hasCUDA reports whether the driver's library is where the dynamic linker may find it.
func (e *examination) hasCUDA() bool {
	dirs := []string{
		"usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib", "lib64",
		"lib/x86_64-linux-gnu",
		"usr/local/nvidia/lib64", "usr/local/nvidia/lib", "usr/local/cuda/compat", "usr/local/lib",
	}
	for _, dir := range strings.Split(variable(e.Environ, "LD_LIBRARY_PATH"), ":") {
		dirs = append(dirs, strings.Trim(path.Clean(dir), "/"))
	}
	return slices.ContainsFunc(dirs, func(dir string) bool { return e.exists(path.Join(dir, "libcuda.so.1")) })
}

// fabricLate stands for the devices if they did not answer in time.
const fabricLate = "?"

// fabric reports the verbs devices.
func (e *examination) fabric(f Fabric) (found []Finding) {
	const name, more = "rdma", "; paiinit rdma has the details"
	switch {
	case e.RDMA == "off":
		found = append(found, pass(name, "off"))
	case f.Summary == fabricLate:
		found = append(found, warning(name, "the verbs devices did not answer in time", "paiinit rdma waits for them"))
	case !f.Usable && e.RDMA == "require":
		text := "--rdma require, but no verbs device can be used: " + cmp.Or(f.Problem, f.Summary)
		found = append(found, failure(name, text, f.Fix, statusUnmendable))
	case f.Problem != "" && f.Devices > 0:
		found = append(found, warning(name, f.Summary+": "+f.Problem, strings.TrimPrefix(f.Fix+more, "; ")))
	case f.Devices == 0:
		found = append(found, pass(name, "no verbs devices; the job uses TCP"))
	default:
		found = append(found, pass(name, f.Summary))
	}
	if f.PeerMemory == "denied" && e.job.Slots > 1 {
		f := pass("cma", "processes may not read each other's memory (process_vm_readv), so MPI copies twice "+
			"between the "+
			"ranks of one host")
		f.Fix = "docker run --cap-add SYS_PTRACE, if MPI's ranks on one host exchange much"
		found = append(found, f)
	}
	return found
}

// What a job needs in /dev/shm: Open MPI maps 4 MiB for each process there, NCCL asks for 1 GiB for 8 GPUs.
const (
	shmEachSlot = 8 * mib
	shmEachGPU  = 128 * mib
)

// sharedMemory reports /dev/shm.
func (e *examination) sharedMemory() Finding {
	const name, dir = "shm", "/dev/shm"
	need := uint64(0)
	if e.job.Slots > 1 {
		need = uint64(e.job.Slots) * shmEachSlot
	}
	need = max(need, uint64(e.job.GPUs)*shmEachGPU)
	fix := "docker run --shm-size=" + strconv.FormatUint(max(1, (need+1<<30-1)>>30), 10) + "g; in Kubernetes an " +
		"emptyDir with medium: Memory at " + dir
	wanted := fmt.Sprintf("NCCL, MPI and data loaders need about %s for %s", bytesText(need), e.users())
	total, free, err := e.System.Space(dir)
	if err == nil {
		err = e.System.Writable(dir)
	}
	if e.Running != "" { // the job that runs may have filled it
		free = total
	}
	switch {
	case err != nil && need == 0:
		return pass(name, fmt.Sprintf("%v; a job of one process needs none", err))
	case err != nil:
		return warning(name, fmt.Sprintf("%v: NCCL, gloo and MPI keep shared memory there", err), fix)
	case total < need:
		return warning(name, fmt.Sprintf("%s has %s; %s", dir, bytesText(total), wanted), fix)
	case free < need:
		return warning(name, fmt.Sprintf("%s has %s, of which %s are free; %s", dir, bytesText(total), bytesText(free),
			wanted), "remove what is left in "+dir)
	}
	return pass(name, dir+" has "+bytesText(total))
}

// users names the processes of this container for which the job needs memory.
func (e *examination) users() string {
	if e.job.GPUs > 0 {
		return plural(e.job.GPUs, "GPU")
	}
	return plural(e.job.Slots, "slot")
}

// lockedMemory reports the limit of locked memory. The finding about RDMA says if it is too low for a device.
func (e *examination) lockedMemory() Finding {
	const name = "memlock"
	if e.System.Memlock == math.MaxUint64 {
		return pass(name, "unlimited")
	}
	return pass(name, bytesText(e.System.Memlock)+"; only RDMA needs more")
}

// memoryEachSlot is less than any rank of MPI or Python needs.
const memoryEachSlot = 32 * mib

// memory reports the cgroup's limit of memory.
func (e *examination) memory() Finding {
	const name = "memory"
	limit, limited := e.cgroup("memory.max", "memory", "memory.limit_in_bytes")
	if !limited || limit >= 1<<60 { // v1 has the largest number of pages for no limit
		return pass(name, "no limit")
	}
	need := uint64(max(e.job.Slots, 1)) * memoryEachSlot
	text := fmt.Sprintf("the cgroup's limit is %s", bytesText(limit))
	if limit < need {
		return warning(name, text+", which is too little for "+plural(max(e.job.Slots, 1), "slot")+": the kernel "+
			"kills the job's processes",
			"raise the container's limit of memory: docker run --memory, resources.limits.memory")
	}
	return pass(name, text)
}

// cpus reports the CPUs that the container may use.
func (e *examination) cpus() Finding {
	const name = "cpus"
	switch {
	case e.job.CPUs == 0:
		return pass(name, "not known without the job")
	case e.job.Slots > e.job.CPUs:
		return warning(name, fmt.Sprintf("%s share %s: MPI's waiting processes take processor time from the others",
			plural(e.job.Slots, "slot"), plural(e.job.CPUs, "CPU")),
			"raise the container's limit of CPUs, or lower --slots")
	}
	return pass(name, plural(e.job.CPUs, "CPU")+" by affinity and the cgroup's quota")
}

// Threads count as processes for the cgroup. NCCL, MPI and Python start dozens in each process.
const (
	threadsEachSlot = 32
	threadsOwn      = 64
)

// processes reports the cgroup's limit of processes.
func (e *examination) processes() Finding {
	const name = "pids"
	limit, limited := e.cgroup("pids.max", "pids", "pids.max")
	if !limited {
		return pass(name, "no limit of processes and threads")
	}
	text := fmt.Sprintf("at most %d processes and threads", limit)
	if need := uint64(threadsOwn + threadsEachSlot*max(e.job.Slots, 1)); limit < need {
		return warning(name, fmt.Sprintf("%s; %s may need %d", text, plural(max(e.job.Slots, 1), "slot"), need),
			"raise the limit: docker run --pids-limit, podPidsLimit of the kubelet")
	}
	return pass(name, text)
}

// minFiles is the number of open files that paiinit and a launcher need for a few hundred hosts.
const minFiles = 4096

// files reports the hard limit of open files.
func (e *examination) files() Finding {
	const name = "files"
	text := fmt.Sprintf("at most %d open files", e.System.NoFile)
	if e.System.NoFile < minFiles {
		return warning(name, text+": too few for launchers and servers of large jobs",
			"docker run --ulimit nofile=65536")
	}
	return pass(name, text)
}

// init reports which program is process 1.
func (e *examination) init() Finding {
	const name = "pid1"
	comm := strings.TrimSpace(e.read("proc/1/comm"))
	switch {
	case e.System.PID == 1 || comm == "paiinit":
		return pass(name, "paiinit")
	case comm == "":
		return pass(name, "not known, because /proc is not mounted")
	case slices.Contains([]string{"sh", "bash", "dash", "ash", "zsh", "busybox"}, comm) && e.Running == "":
		return warning(name, comm+": a shell does not pass SIGTERM on, so that docker stop and Kubernetes kill the job",
			"ENTRYPOINT [\"paiinit\", \"--\"], or exec paiinit in the shell")
	}
	return pass(name, comm+"; paiinit adopts the job's orphans itself")
}

// clock reports a clock that is behind the program itself. The gossip needs no equal clocks, but certificates, logs and
// build tools do.
func (e *examination) clock() Finding {
	const name = "clock"
	now := e.System.Now()
	if now.Before(e.System.Built) {
		return warning(name, fmt.Sprintf("%s is before %s, when this program was built: the clock is wrong",
			now.UTC().Format(time.DateOnly), e.System.Built.UTC().Format(time.DateOnly)),
			"set the host's clock, for example by NTP")
	}
	return pass(name, now.UTC().Format("2006-01-02 15:04 UTC"))
}

// cgroup returns a limit of this container's cgroup: from a file of v2, else of a controller of v1
// (Documentation/admin-guide/cgroup-v2.rst and cgroup-v1 of the kernel). Inside a cgroup namespace the container's own
// group is the root; otherwise /proc/self/cgroup has its path.
func (e *examination) cgroup(v2, controller, v1 string) (limit uint64, limited bool) {
	groups := e.read("proc/self/cgroup") // "0::/path" or "4:memory:/path"
	if groups == "" {                    // without /proc
		groups = "0::/\n1:" + controller + ":/\n"
	}
	for line := range strings.Lines(groups) {
		part := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(part) != 3 {
			continue
		}
		base, file := "sys/fs/cgroup", v2
		switch {
		case part[1] == "":
		case slices.Contains(strings.Split(part[1], ","), controller):
			base, file = "sys/fs/cgroup/"+controller, v1
		default:
			continue
		}
		for _, dir := range []string{part[2], "/"} {
			text := strings.TrimSpace(e.read(path.Join(base, path.Join("/", dir), file)))
			if text == "max" {
				return 0, false
			}
			if n, err := strconv.ParseUint(text, 10, 64); err == nil {
				return n, true
			}
		}
	}
	return 0, false
}

// read returns the text of a file, "" if it cannot be read.
func (e *examination) read(name string) string {
	b, _ := fs.ReadFile(e.Root, name)
	return string(b)
}

func (e *examination) exists(name string) bool {
	_, err := fs.Stat(e.Root, name)
	return err == nil
}

// devices counts the entries of a directory that are prefix and a number.
func (e *examination) devices(dir, prefix string) (n int) {
	entries, _ := fs.ReadDir(e.Root, dir)
	for _, entry := range entries {
		number, ok := strings.CutPrefix(entry.Name(), prefix)
		if ok && number != "" && strings.Trim(number, "0123456789") == "" {
			n++
		}
	}
	return n
}

// bytesText formats a number of bytes, such as "64 MiB".
func bytesText(n uint64) string {
	const units = "KMGTPE"
	if n < 1<<10 {
		return fmt.Sprintf("%d bytes", n)
	}
	f := float64(n)
	i := -1
	for f >= 1<<10 && i+1 < len(units) {
		f /= 1 << 10
		i++
	}
	return strconv.FormatFloat(math.Round(f*10)/10, 'f', -1, 64) + " " + units[i:i+1] + "iB"
}
