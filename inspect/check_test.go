package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/cmdline"
)

var errConfig = errors.New("explicit: PAIINIT_INDEX is not set; set PAIINIT_INDEX")

// files is the tree of a test.
type files = fstest.MapFS

// healthy returns a check of a container in which nothing is wrong: rank 1 of 4, with 8 GPUs.
func healthy() Checkup {
	programs := []string{"/usr/bin/mpirun", "/usr/bin/mpiexec", "/usr/bin/torchrun", "/usr/bin/python3", "/bin/sh",
		"/usr/bin/ssh"}
	tree := fstest.MapFS{
		"dev/kmsg": {}, "proc/1/comm": text("paiinit\n"),
		"proc/self/cgroup":                      text("0::/\n"),
		"sys/fs/cgroup/memory.max":              text("549755813888\n"),
		"sys/fs/cgroup/pids.max":                text("max\n"),
		"usr/lib/x86_64-linux-gnu/libcuda.so.1": text(""),
		"proc/driver/nvidia/version":            text("NVRM version: NVIDIA UNIX Kernel Module  535.104.05  Sat\n"),
		"usr/bin/torchrun":                      text("#!/usr/bin/python3\nimport torch\n"),
		"usr/bin/crlf":                          text("#!/bin/sh\r\necho\r\n"),
		"usr/bin/old":                           text("#!/usr/bin/env -S A=1 python2 -u\n"),
		"usr/bin/elf":                           text("\x7fELF"),
		"usr/bin/start":                         text("#!/bin/sh\nset -e\nexec gosu user \"$@\"\n"),
		"dev/nvidiactl":                         text(""),
	}
	for i := range 8 {
		tree[fmt.Sprintf("dev/nvidia%d", i)] = text("")
	}
	return Checkup{
		Root: tree, Environ: []string{"PATH=/usr/bin"}, Dir: "/work", RDMA: "auto", Usual: "/run/paiinit",
		Launchers: []string{"torchrun", "horovodrun"},
		System: System{
			Space:    func(string) (uint64, uint64, error) { return 16 << 30, 15 << 30, nil },
			Writable: func(string) error { return nil },
			Memlock:  math.MaxUint64, NoFile: 1 << 20, PID: 77,
			Now:   func() time.Time { return time.Date(2027, 3, 4, 5, 6, 7, 0, time.UTC) },
			Built: time.Date(2027, 1, 2, 0, 0, 0, 0, time.UTC),
		},
		Job: func(context.Context) (Job, error) {
			return Job{
				System: "compose", Alias: "worker-1", Rank: 1, Size: 4, Slots: 8, GPUs: 8, CPUs: 64, Port: 12345,
				Hosts:  []string{"worker-0", "worker-1", "10.0.0.7", "worker-3"},
				Secret: func() (string, int, error) { return "PAIINIT_SECRET", 44, nil },
			}, nil
		},
		Place: func(string, int) (string, error) { return "/run/paiinit", nil },
		Look: func(name string, _ []string, _ string) (string, error) {
			for _, p := range append(programs, "/usr/bin/crlf", "/usr/bin/old", "/usr/bin/elf", "/usr/bin/start") {
				if p == name || strings.HasSuffix(p, "/"+name) {
					return p, nil
				}
			}
			return "", fmt.Errorf("running %q: not found in PATH (/usr/bin)", name)
		},
		Identify: func(context.Context, []string, []string, bool) string {
			return "mpirun=Open_MPI_4.1.4 mpiexec=Open_MPI_4.1.4"
		},
		Resolve:  func(context.Context, string) ([]netip.Addr, error) { return nil, nil },
		TryPort:  func(int) (tcp, udp error) { return nil, nil },
		Greeting: func(context.Context, int) string { return "" },
		Fabric:   func() Fabric { return Fabric{Summary: "2 x InfiniBand 400 Gb/s", Devices: 2, Usable: true} },
		Status:   func(error) int { return 78 },
	}
}

func text(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }

// withJob changes the job of a check.
func withJob(c *Checkup, change func(*Job)) {
	job := c.Job
	c.Job = func(ctx context.Context) (Job, error) {
		j, err := job(ctx)
		change(&j)
		return j, err
	}
}

func TestCheckTable(t *testing.T) {
	c := healthy()
	c.Command = []string{"torchrun", "train.py"}
	var b strings.Builder
	require.NoError(t, c.Run(t.Context()).Write(&b, false))
	require.Equal(t, `OK    job        compose: worker-1, rank 1 of 4, 8 slots
OK    variables  every PAIINIT_ variable has a meaning
OK    state      /run/paiinit
OK    secret     44 bytes from PAIINIT_SECRET
OK    command    /usr/bin/torchrun
OK    entrypoint the image has no script that an ENTRYPOINT would name
OK    launchers  mpirun, mpiexec: Open MPI 4.1.4; torchrun
OK    shell      /bin/sh
OK    ssh        paiinit; the image has /usr/bin/ssh
OK    port       12345/tcp and 12345/udp are free
OK    dns        3 hosts of the job found by name
OK    gpus       8 NVIDIA, driver 535.104.05
OK    rdma       2 x InfiniBand 400 Gb/s
OK    shm        /dev/shm has 16 GiB
OK    memlock    unlimited
OK    memory     the cgroup's limit is 512 GiB
OK    cpus       64 CPUs by affinity and the cgroup's quota
OK    pids       no limit of processes and threads
OK    files      at most 1048576 open files
OK    pid1       paiinit
OK    clock      2027-03-04 05:06 UTC

21 OK
`, b.String())

	c.Command = []string{"train.sh"}
	c.Unknown = []string{"PAIINIT_SISE: did you mean PAIINIT_SIZE?"}
	c.Root.(fstest.MapFS)["sys/fs/cgroup/pids.max"] = text("100\n")
	c.ExecAll, c.LoginsIn = true, true
	c.System.Space = func(string) (uint64, uint64, error) { return 64 << 20, 64 << 20, nil }
	withJob(&c, func(j *Job) {
		j.Rank = 0
		j.Secret = func() (string, int, error) { return "", 0, nil }
	})
	c.Status = func(error) int { return 127 }
	b.Reset()
	require.NoError(t, c.Run(t.Context()).Write(&b, false))
	require.Equal(t, `OK    job        compose: worker-1, rank 0 of 4, 8 slots
WARN  variables  PAIINIT_SISE: did you mean PAIINIT_SIZE?
                 fix: correct the name; docs/commands.md lists all variables
OK    state      /run/paiinit
FAIL  secret     the job has 4 ranks and no secret
                 fix: make one: head -c 32 /dev/urandom | base64; give the same
                 one to every container, by --secret-file FILE or PAIINIT_SECRET
FAIL  command    running "train.sh": not found in PATH (/usr/bin)
                 fix: install it in the image, or give its path
OK    entrypoint the image has no script that an ENTRYPOINT would name
OK    launchers  mpirun, mpiexec: Open MPI 4.1.4; torchrun
OK    shell      /bin/sh
OK    ssh        paiinit; the image has /usr/bin/ssh
OK    port       12345/tcp and 12345/udp are free
OK    dns        3 hosts of the job found by name
OK    gpus       8 NVIDIA, driver 535.104.05
OK    rdma       2 x InfiniBand 400 Gb/s
WARN  shm        /dev/shm has 64 MiB; NCCL, MPI and data loaders need about 1
                 GiB for 8 GPUs
                 fix: docker run --shm-size=1g; in Kubernetes an emptyDir with
                 medium: Memory at /dev/shm
OK    memlock    unlimited
OK    memory     the cgroup's limit is 512 GiB
OK    cpus       64 CPUs by affinity and the cgroup's quota
WARN  pids       at most 100 processes and threads; 8 slots may need 320
                 fix: raise the limit: docker run --pids-limit, podPidsLimit of
                 the kubelet
OK    files      at most 1048576 open files
OK    pid1       paiinit
OK    clock      2027-03-04 05:06 UTC

2 FAIL (secret, command), 3 WARN (variables, shm, pids), 16 OK: paiinit run
would end with status 77 here
`, b.String())
}

func TestCheckFindings(t *testing.T) {
	timeout := &net.DNSError{IsTimeout: true}
	for _, tt := range []struct {
		name   string
		change func(c *Checkup, tree files)
		want   string // "severity name: text | fix"
	}{
		{"unknown rank and size", func(c *Checkup, _ files) {
			withJob(c, func(j *Job) { j.Rank, j.Size, j.Slots = -1, -1, 1 })
		}, "ok job: compose: worker-1, rank to be agreed of a number that rank 0 knows, 1 slot | "},
		{"alone", func(c *Checkup, _ files) {
			withJob(c, func(j *Job) { j.System, j.Size = "single", 1 })
		}, "ok job: single: a job of one rank, 8 slots | "},
		{"alone needs no secret", func(c *Checkup, _ files) {
			withJob(c, func(j *Job) { j.Size, j.Secret = 1, nil })
		}, "ok secret: a job of one rank needs none | "},
		{"alone opens no port", func(c *Checkup, _ files) {
			withJob(c, func(j *Job) { j.Size = 1 })
		}, "ok port: a job of one rank opens none | "},
		{"alone with people needs a secret", func(c *Checkup, _ files) {
			c.LoginsIn = true
			withJob(c, func(j *Job) {
				j.Size, j.Secret = 1, func() (string, int, error) { return "", 0, nil }
			})
		}, "ok secret: none; a job of one rank makes a random one | "},
		{"alone without a shell", func(c *Checkup, _ files) {
			withJob(c, func(j *Job) { j.Size = 1 })
			lacks(c, "/bin/sh")
		}, "ok shell: no /bin/sh; a job of one rank needs none | "},
		{"contradiction", func(c *Checkup, _ files) {
			c.Job = func(context.Context) (Job, error) { return Job{}, errConfig }
		}, "fail job: " + errConfig.Error() + " | correct the variable; docs/schedulers has a page for each scheduler"},
		{"contradiction beside a running paiinit", func(c *Checkup, _ files) {
			c.Running = "worker-1"
			c.Job = func(context.Context) (Job, error) { return Job{}, errConfig }
		}, "warn job: " + errConfig.Error() +
			" | nothing, if the ENTRYPOINT has flags about the job: this command does not see them"},
		{"service link", func(c *Checkup, _ files) {
			c.Environ = append(c.Environ, "PAIINIT_PORT=tcp://10.0.0.1:80")
			c.Job = func(context.Context) (Job, error) { return Job{}, errors.New("PAIINIT_PORT is bad") }
		}, "fail job: PAIINIT_PORT is bad | rename the Kubernetes Service paiinit, or set enableServiceLinks: " +
			"false in the pod"},
		{"warning of the environment", func(c *Checkup, _ files) {
			withJob(c, func(j *Job) { j.Warnings = []string{"also saw slurm"} })
		}, "warn job: also saw slurm | paiinit env shows what was detected, and from which variables"},
		{"no command", func(*Checkup, files) {},
			"ok command: none given; paiinit check COMMAND looks for it, too | "},
		{"command of rank 0 only", func(c *Checkup, _ files) { c.Command = []string{"nowhere"} },
			"ok command: nowhere is not in this container, and only rank 0 runs it | "},
		{"program", func(c *Checkup, _ files) { c.Command = []string{"elf"} }, "ok command: /usr/bin/elf | "},
		{"missing interpreter", func(c *Checkup, _ files) { c.Command = []string{"old"} },
			"fail command: /usr/bin/old: its first line names python2, which is not in this image | install python2"},
		{"carriage return", func(c *Checkup, _ files) { c.Command = []string{"crlf"} },
			"fail command: /usr/bin/crlf: its first line ends in a carriage return, which counts as part of the " +
				"interpreter's name | convert the file to Unix line ends: sed -i 's/\\r$//' /usr/bin/crlf"},
		{"script of an ENTRYPOINT in COMMAND", func(c *Checkup, _ files) { c.Command = []string{"start", "mpirun"} },
			"warn entrypoint: /usr/bin/start is part of COMMAND: it runs on rank 0 alone, and what it sets does not " +
				"reach the programs on other ranks | to run it in every container, put it before paiinit: " +
				`ENTRYPOINT ["/usr/bin/start", "paiinit", "--"]`},
		{"the same on every rank", func(c *Checkup, _ files) {
			c.Command, c.ExecAll = []string{"start", "mpirun"}, true
		}, "ok entrypoint: /usr/bin/start is part of COMMAND, which every rank runs | "},
		{"the same alone", func(c *Checkup, _ files) {
			c.Command = []string{"start", "mpirun"}
			withJob(c, func(j *Job) { j.Size = 1 })
		}, "ok entrypoint: /usr/bin/start is part of COMMAND: in a job of several ranks it would run on rank 0 " +
			"alone | "},
		{"script in the COMMAND of the running paiinit", func(c *Checkup, tree files) {
			c.Running, c.Command = "worker-1", []string{"mpirun"}
			tree["proc/1/cmdline"] = text("paiinit\x00--timeout\x001m\x00/usr/bin/start\x00paiinit\x00check\x00x\x00")
		}, "warn entrypoint: /usr/bin/start is part of COMMAND: it runs on rank 0 alone, and what it sets does not " +
			"reach the programs on other ranks | to run it in every container, put it before paiinit: " +
			`ENTRYPOINT ["/usr/bin/start", "paiinit", "--"]`},
		{"lost script", func(_ *Checkup, tree files) { entrypoint(tree) },
			"warn entrypoint: /opt/x/x_entrypoint.sh is in the image and has not run: paiinit replaces the image's " +
				"own ENTRYPOINT | nothing, if the job does not need it; else put it before paiinit: " +
				`ENTRYPOINT ["/opt/x/x_entrypoint.sh", "paiinit", "--"]`},
		{"script before paiinit", func(c *Checkup, tree files) {
			entrypoint(tree)
			c.Environ = append(c.Environ, "PWD=/work")
		}, "ok entrypoint: /opt/x/x_entrypoint.sh; a shell ran before paiinit, probably this script | "},
		{"script beside a running paiinit", func(c *Checkup, tree files) {
			entrypoint(tree)
			c.Running = "worker-1"
		}, "ok entrypoint: /opt/x/x_entrypoint.sh; not known whether it has run | "},
		{"script as a later word of COMMAND", func(c *Checkup, tree files) {
			entrypoint(tree)
			c.Command = []string{"mpirun", "/opt/x/x_entrypoint.sh", "train"}
		}, "ok entrypoint: the image has no script that an ENTRYPOINT would name | "},
		{"silent launcher", func(c *Checkup, _ files) {
			c.Identify = func(context.Context, []string, []string, bool) string { return "mpirun=?" }
		}, "warn launchers: mpirun printed no version that paiinit knows within 1.7s | see whether it starts: mpirun " +
			"--version"},
		{"no launcher", func(c *Checkup, _ files) {
			c.Launchers = nil
			c.Identify = func(context.Context, []string, []string, bool) string { return "" }
		}, "ok launchers: none in PATH; a job without mpirun, torchrun and the like needs none | "},
		{"no shell", func(c *Checkup, _ files) { lacks(c, "/bin/sh") },
			"warn shell: no /bin/sh: launchers, paiinit rsh and paiinit each cannot start anything in this " +
				"container | install a shell in the image; only --exec all works without"},
		{"no ssh", func(c *Checkup, _ files) { lacks(c, "ssh") },
			"ok ssh: paiinit; the image has none, and the job needs none | "},
		{"the image's ssh is missing", func(c *Checkup, _ files) { c.ImageSSH = true; lacks(c, "ssh") },
			"warn ssh: --ssh image, but the image has no ssh | remove --ssh image, or install openssh-client"},
		{"weak secret", func(c *Checkup, _ files) {
			withJob(c, func(j *Job) {
				j.Secret = func() (string, int, error) {
					return "", 0, errors.New("it is weak")
				}
			})
		}, "fail secret: it is weak | make one: head -c 32 /dev/urandom | base64; give the same one to every " +
			"container, by --secret-file FILE or PAIINIT_SECRET"},
		{"short secret", func(c *Checkup, _ files) {
			withJob(c, func(j *Job) { j.Secret = func() (string, int, error) { return "/s", 20, nil } })
		}, "ok secret: 20 bytes from /s; 32 random bytes are better | "},
		{"insecure", func(c *Checkup, _ files) {
			c.Insecure = true
			withJob(c, func(j *Job) { j.Secret = func() (string, int, error) { return "", 0, nil } })
		}, "warn secret: none (--insecure): every host that reaches the port and knows the job's ID can run " +
			"commands in this container | make one: head -c 32 /dev/urandom | base64; give the same one to every " +
			"container, by --secret-file FILE or PAIINIT_SECRET"},
		{"secret of the running paiinit", func(c *Checkup, _ files) { c.Running = "worker-1" },
			"ok secret: the running paiinit has it | "},
		{"running paiinit", func(c *Checkup, _ files) { c.Running = "worker-1" },
			"ok state: a paiinit runs in this container: worker-1 | "},
		{"no state directory", func(c *Checkup, _ files) {
			c.Place = func(string, int) (string, error) { return "", errors.New("read-only") }
		}, "fail state: read-only | docker run --tmpfs /run/paiinit, a writable /dev/shm, or --state-dir DIR; in " +
			"Kubernetes an emptyDir at /run/paiinit"},
		{"port of the running paiinit", func(c *Checkup, _ files) {
			c.Running = "worker-1"
			taken(c, "SSH-2.0-paiinit 1\r\n")
		}, "ok port: 12345/tcp is the running paiinit's | "},
		{"port of another paiinit", func(c *Checkup, _ files) { taken(c, "SSH-2.0-paiinit 1\r\n") },
			"warn port: 12345/tcp is in use by the paiinit of another job or container: paiinit would take the " +
				"next free port, where the other ranks may not find it | end that program, or give all ranks " +
				"another --port"},
		{"port of an ssh server", func(c *Checkup, _ files) { taken(c, "SSH-2.0-OpenSSH_9.2\r\n") },
			`warn port: 12345/tcp is in use by another program ("SSH-2.0-OpenSSH_9.2"): paiinit would take the next ` +
				"free port, where the other ranks may not find it | " +
				"end that program, or give all ranks another --port"},
		{"port of a silent program", func(c *Checkup, _ files) { taken(c, "") },
			"warn port: 12345/tcp is in use by another program: paiinit would take the next free port, where the " +
				"other ranks may not find it | end that program, or give all ranks another --port"},
		{"udp port in use", func(c *Checkup, _ files) {
			c.TryPort = func(int) (tcp, udp error) { return nil, syscall.EADDRINUSE }
		}, "warn port: 12345/udp is in use by another program: paiinit would take the next free port, where the " +
			"other ranks may not find it | end that program, or give all ranks another --port"},
		{"no udp", func(c *Checkup, _ files) {
			c.TryPort = func(int) (tcp, udp error) { return nil, syscall.EPERM }
		}, "warn port: 12345/udp cannot be opened: operation not permitted; gathering takes longer without it | "},
		{"privileged port", func(c *Checkup, _ files) {
			c.TryPort = func(int) (tcp, udp error) { return syscall.EACCES, syscall.EACCES }
			withJob(c, func(j *Job) { j.Port = 22 })
		}, "fail port: 22/tcp cannot be opened: permission denied | give all ranks another --port from 1024 on, " +
			"or run as root"},
		{"names without an address", func(c *Checkup, _ files) {
			c.Resolve = func(context.Context, string) ([]netip.Addr, error) {
				return nil, &net.DNSError{IsNotFound: true}
			}
			withJob(c, func(j *Job) { j.Hosts = []string{"f", "e", "d", "c", "b", "a", "a"} })
		}, "warn dns: these hosts of the job have no address yet: a, b, c, d and 2 more | nothing, if their " +
			"containers have not started; else correct the names"},
		{"slow DNS", func(c *Checkup, _ files) {
			c.Resolve = func(context.Context, string) ([]netip.Addr, error) { return nil, timeout }
		}, "warn dns: DNS gave no answer in time about 3 of 3 hosts of the job | check /etc/resolv.conf and its " +
			"servers"},
		{"no network", func(c *Checkup, _ files) {
			err := &net.DNSError{Name: "worker-0", Err: "dial udp: connect: network is unreachable", IsTemporary: true}
			c.Resolve = func(context.Context, string) ([]netip.Addr, error) { return nil, err }
		}, "warn dns: DNS cannot be asked: lookup worker-0: dial udp: connect: network is unreachable | check " +
			"the container's network, /etc/resolv.conf and its servers"},
		{"no GPU", func(c *Checkup, tree files) { withoutGPUs(c, tree, "") }, "ok gpus: none | "},
		{"no GPU in a CUDA image", func(c *Checkup, tree files) { withoutGPUs(c, tree, "all") },
			"ok gpus: none; NVIDIA_VISIBLE_DEVICES=all is set, as CUDA images do: docker run --gpus all passes " +
				"GPUs in | "},
		{"no GPU of those wanted", func(c *Checkup, tree files) { withoutGPUs(c, tree, "0,1") },
			"warn gpus: NVIDIA_VISIBLE_DEVICES=0,1 asks for GPUs, but the container has no /dev/nvidia* | run " +
				"with NVIDIA's container runtime: docker run --gpus, or a nvidia.com/gpu resource in Kubernetes"},
		{"no GPU of the scheduler's", func(c *Checkup, tree files) {
			withoutGPUs(c, tree, "")
			withJob(c, func(j *Job) { j.GPUs = 2 })
		}, "warn gpus: the scheduler gives 2 GPUs, but the container has none | "},
		{"some GPUs", func(c *Checkup, _ files) { withJob(c, func(j *Job) { j.GPUs = 2 }) },
			"ok gpus: 8 NVIDIA, of which the job uses 2, driver 535.104.05 | "},
		{"no driver", func(_ *Checkup, tree files) { delete(tree, "usr/lib/x86_64-linux-gnu/libcuda.so.1") },
			"warn gpus: 8 /dev/nvidia*, but no libcuda.so.1: CUDA programs find no driver | " +
				"NVIDIA_DRIVER_CAPABILITIES=compute,utility makes the container toolkit mount the driver"},
		{"driver by LD_LIBRARY_PATH", func(c *Checkup, tree files) {
			delete(tree, "usr/lib/x86_64-linux-gnu/libcuda.so.1")
			delete(tree, "proc/driver/nvidia/version")
			tree["opt/cuda/libcuda.so.1"] = text("")
			c.Environ = append(c.Environ, "LD_LIBRARY_PATH=:/opt/cuda/")
		}, "ok gpus: 8 NVIDIA | "},
		{"AMD", func(c *Checkup, tree files) {
			withoutGPUs(c, tree, "")
			tree["dev/kfd"], tree["dev/dri/renderD128"], tree["dev/dri/card0"] = text(""), text(""), text("")
			withJob(c, func(j *Job) { j.GPUs = 1 })
		}, "ok gpus: 1 AMD | "},
		{"RDMA is off", func(c *Checkup, _ files) { c.RDMA = "off" }, "ok rdma: off | "},
		{"no RDMA", func(c *Checkup, _ files) { c.Fabric = func() Fabric { return Fabric{Summary: "none"} } },
			"ok rdma: no verbs devices; the job uses TCP | "},
		{"RDMA is required", func(c *Checkup, _ files) {
			c.RDMA, c.Fabric = "require", func() Fabric { return Fabric{Summary: "none"} }
		}, "fail rdma: --rdma require, but no verbs device can be used: none | "},
		{"unusable RDMA", func(c *Checkup, _ files) {
			c.Fabric = func() Fabric {
				return Fabric{Summary: "1 device, not usable: no device node", Devices: 1, Problem: "no node",
					Fix: "pass it in"}
			}
		}, "warn rdma: 1 device, not usable: no device node: no node | pass it in; paiinit rdma has the details"},
		{"unreadable memory of peers", func(c *Checkup, _ files) {
			c.Fabric = func() Fabric { return Fabric{PeerMemory: "denied"} }
		}, "ok cma: processes may not read each other's memory (process_vm_readv), so MPI copies twice between " +
			"the ranks of one host | docker run --cap-add SYS_PTRACE, if MPI's ranks on one host exchange much"},
		{"small /dev/shm, but one process", func(c *Checkup, tree files) {
			withoutGPUs(c, tree, "")
			withJob(c, func(j *Job) { j.Slots = 1 })
			shm(c, 1<<20, 1<<20, nil)
		}, "ok shm: /dev/shm has 1 MiB | "},
		{"docker's /dev/shm and a few processes", func(c *Checkup, tree files) {
			withoutGPUs(c, tree, "")
			shm(c, 64<<20, 64<<20, nil)
		}, "ok shm: /dev/shm has 64 MiB | "},
		{"docker's /dev/shm and many processes", func(c *Checkup, tree files) {
			withoutGPUs(c, tree, "")
			withJob(c, func(j *Job) { j.Slots = 16 })
			shm(c, 64<<20, 64<<20, nil)
		}, "warn shm: /dev/shm has 64 MiB; NCCL, MPI and data loaders need about 128 MiB for 16 slots | docker run " +
			"--shm-size=1g; in Kubernetes an emptyDir with medium: Memory at /dev/shm"},
		{"full /dev/shm", func(c *Checkup, _ files) { shm(c, 16<<30, 100<<20, nil) },
			"warn shm: /dev/shm has 16 GiB, of which 100 MiB are free; NCCL, MPI and data loaders need about 1 GiB " +
				"for 8 GPUs | remove what is left in /dev/shm"},
		{"/dev/shm that the job fills", func(c *Checkup, _ files) { c.Running = "me"; shm(c, 16<<30, 1<<20, nil) },
			"ok shm: /dev/shm has 16 GiB | "},
		{"no /dev/shm", func(c *Checkup, _ files) { shm(c, 0, 0, errors.New("/dev/shm is not there")) },
			"warn shm: /dev/shm is not there: NCCL, gloo and MPI keep shared memory there | docker run " +
				"--shm-size=1g; in Kubernetes an emptyDir with medium: Memory at /dev/shm"},
		{"no /dev/shm for one process", func(c *Checkup, tree files) {
			withoutGPUs(c, tree, "")
			withJob(c, func(j *Job) { j.Slots = 1 })
			shm(c, 0, 0, errors.New("/dev/shm is not there"))
		}, "ok shm: /dev/shm is not there; a job of one process needs none | "},
		{"locked memory", func(c *Checkup, _ files) { c.System.Memlock = 8 << 20 },
			"ok memlock: 8 MiB; only RDMA needs more | "},
		{"little memory", func(_ *Checkup, tree files) { tree["sys/fs/cgroup/memory.max"] = text("134217728\n") },
			"warn memory: the cgroup's limit is 128 MiB, which is too little for 8 slots: the kernel kills the " +
				"job's processes | raise the container's limit of memory: docker run --memory, " +
				"resources.limits.memory"},
		{"no limit of memory", func(_ *Checkup, tree files) { tree["sys/fs/cgroup/memory.max"] = text("max\n") },
			"ok memory: no limit | "},
		{"cgroup v1", func(_ *Checkup, tree files) {
			tree["proc/self/cgroup"] = text("4:cpu,memory:/docker/abc\n1:name=systemd:/docker/abc\n")
			tree["sys/fs/cgroup/memory/memory.limit_in_bytes"] = text("4294967296\n")
		}, "ok memory: the cgroup's limit is 4 GiB | "},
		{"cgroup v1 without a limit", func(_ *Checkup, tree files) {
			tree["proc/self/cgroup"] = text("4:memory:/docker/abc\n")
			tree["sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes"] = text("9223372036854771712\n")
		}, "ok memory: no limit | "},
		{"no /proc", func(_ *Checkup, tree files) { delete(tree, "proc/self/cgroup") },
			"ok memory: the cgroup's limit is 512 GiB | "},
		{"no cgroup", func(_ *Checkup, tree files) { delete(tree, "sys/fs/cgroup/memory.max") },
			"ok memory: no limit | "},
		{"fewer CPUs than slots", func(c *Checkup, _ files) { withJob(c, func(j *Job) { j.CPUs = 2 }) },
			"warn cpus: 8 slots share 2 CPUs: MPI's waiting processes take processor time from the others | " +
				"raise the container's limit of CPUs, or lower --slots"},
		{"few files", func(c *Checkup, _ files) { c.System.NoFile = 1024 },
			"warn files: at most 1024 open files: too few for launchers and servers of large jobs | docker run " +
				"--ulimit nofile=65536"},
		{"a shell is process 1", func(_ *Checkup, tree files) { tree["proc/1/comm"] = text("bash\n") },
			`warn pid1: bash: a shell does not pass SIGTERM on, so that docker stop and Kubernetes kill the job | ` +
				`ENTRYPOINT ["paiinit", "--"], or exec paiinit in the shell`},
		{"a shell is process 1 of a running job", func(c *Checkup, tree files) {
			c.Running, tree["proc/1/comm"] = "worker-1", text("bash\n")
		}, "ok pid1: bash; paiinit adopts the job's orphans itself | "},
		{"another init", func(_ *Checkup, tree files) { tree["proc/1/comm"] = text("tini\n") },
			"ok pid1: tini; paiinit adopts the job's orphans itself | "},
		{"process 1 itself", func(c *Checkup, tree files) { c.System.PID = 1; delete(tree, "proc/1/comm") },
			"ok pid1: paiinit | "},
		{"process 1 is unknown", func(_ *Checkup, tree files) { delete(tree, "proc/1/comm") },
			"ok pid1: not known, because /proc is not mounted | "},
		{"wrong clock", func(c *Checkup, _ files) { c.System.Now = func() time.Time { return time.Unix(0, 0) } },
			"warn clock: 1970-01-01 is before 2027-01-02, when this program was built: the clock is wrong | set " +
				"the host's clock, for example by NTP"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := healthy()
			tt.change(&c, c.Root.(fstest.MapFS))
			r := c.Run(t.Context())
			var found []string
			for _, f := range r.Findings {
				found = append(found, fmt.Sprintf("%s %s: %s | %s", f.Severity, f.Name, f.Text, f.Fix))
			}
			require.Contains(t, found, tt.want, "%q", found)
			require.Equal(t, r.Fail > 0, r.Status != 0)
			require.Len(t, r.Findings, r.OK+r.Warn+r.Fail)
		})
	}
}

func entrypoint(tree files) {
	tree["opt/x/x_entrypoint.sh"] = text("#!/bin/bash\nif [ $# -eq 0 ]; then exec bash; else exec \"$@\"; fi\n")
	tree["opt/x/other_entrypoint.sh"] = text("#!/bin/bash\n# exec \"$@\"\nexec serve # \"$@\"\n")
}

func lacks(c *Checkup, missing string) {
	look := c.Look
	c.Look = func(name string, environ []string, dir string) (string, error) {
		if name == missing {
			return "", os.ErrNotExist
		}
		return look(name, environ, dir)
	}
}

func taken(c *Checkup, greeting string) {
	c.TryPort = func(int) (tcp, udp error) { return os.NewSyscallError("bind", syscall.EADDRINUSE), nil }
	c.Greeting = func(context.Context, int) string { return greeting }
}

func withoutGPUs(c *Checkup, tree files, visible string) {
	for name := range tree {
		if strings.HasPrefix(name, "dev/nvidia") {
			delete(tree, name)
		}
	}
	c.Environ = append(c.Environ, "NVIDIA_VISIBLE_DEVICES="+visible)
	withJob(c, func(j *Job) { j.GPUs = 0 })
}

func shm(c *Checkup, total, free uint64, err error) {
	c.System.Space = func(string) (uint64, uint64, error) { return total, free, err }
}

// A check ends in time whatever hangs, and says what it does not know.
func TestCheckIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		over := make(chan struct{})
		defer synctest.Wait()
		defer close(over)
		c := healthy()
		c.Resolve = func(ctx context.Context, _ string) ([]netip.Addr, error) { <-ctx.Done(); return nil, ctx.Err() }
		c.Fabric = func() Fabric { <-over; return Fabric{} }
		c.Identify = func(context.Context, []string, []string, bool) string { <-over; return "" }
		taken(&c, "")
		c.Greeting = func(ctx context.Context, _ int) string { <-ctx.Done(); return "" }
		begin := time.Now()
		r := c.Run(t.Context())
		require.LessOrEqual(t, time.Since(begin), 3*time.Second)
		var slow []string
		for _, f := range r.Findings {
			if f.Severity != SeverityOK {
				slow = append(slow, f.Name+": "+f.Text)
			}
		}
		require.Equal(t, []string{
			"launchers: finding them took too long: a directory of PATH does not answer",
			"port: 12345/tcp is in use by another program: paiinit would take the next free port, where the " +
				"other ranks may not find it",
			"dns: DNS gave no answer in time about 3 of 3 hosts of the job",
			"rdma: the verbs devices did not answer in time",
		}, slow)

		c.Job = func(ctx context.Context) (Job, error) { <-over; return Job{}, ctx.Err() }
		begin = time.Now()
		r = c.Run(t.Context())
		require.LessOrEqual(t, time.Since(begin), 3*time.Second)
		require.Equal(t, Finding{
			Severity: SeverityWarn, Name: "job", Text: "not known: DNS did not answer within 1.2s",
			Fix: "check /etc/resolv.conf and its servers, or give --rank, --size and --peers",
		}, r.Findings[0])
		require.Zero(t, r.Fail)
	})
}

// The status is the one with which a launch would end: it reads the job first, then opens the state directory, then
// looks for the secret and the command.
func TestCheckStatus(t *testing.T) {
	c := healthy()
	c.RDMA, c.Fabric = "require", func() Fabric { return Fabric{} }
	require.Equal(t, 69, c.Run(t.Context()).Status)
	c.Command, c.ExecAll, c.Status = []string{"nowhere"}, true, func(error) int { return 127 }
	require.Equal(t, 127, c.Run(t.Context()).Status)
	secret := errors.New("weak")
	withJob(&c, func(j *Job) { j.Secret = func() (string, int, error) { return "", 0, secret } })
	require.Equal(t, 77, c.Run(t.Context()).Status)
	c.Place = func(string, int) (string, error) { return "", errors.New("read-only") }
	require.Equal(t, 69, c.Run(t.Context()).Status)
	c.Status = func(error) int { return 78 }
	c.Job = func(context.Context) (Job, error) { return Job{}, errConfig }
	require.Equal(t, 78, c.Run(t.Context()).Status)
}

func TestCheckJSON(t *testing.T) {
	r := Result{Findings: []Finding{pass("shell", "/bin/sh"), failure("secret", "no <secret>", "make one", 77)}}
	r.count()
	var b strings.Builder
	require.NoError(t, r.Write(&b, true))
	var got map[string]any
	require.NoError(t, json.Unmarshal([]byte(b.String()), &got))
	require.Equal(t, map[string]any{
		"findings": []any{
			map[string]any{"severity": "ok", "name": "shell", "text": "/bin/sh", "fix": ""},
			map[string]any{"severity": "fail", "name": "secret", "text": "no <secret>", "fix": "make one"},
		},
		"ok": 1.0, "warn": 0.0, "fail": 1.0, "status": 77.0,
	}, got)
}

// No line is longer than a terminal, and no value of the environment can look like a line of ours.
func TestCheckTableIsNarrow(t *testing.T) {
	r := Result{Findings: []Finding{
		warning("job", "a"+strings.Repeat("é", 200)+" b", strings.Repeat("word ", 60)),
		warning("variables", "PAIINIT_X\nOK    secret", "\x1b[2J\u202e"),
		pass("state", strings.Repeat("x", 63)), pass("state", strings.Repeat("y", 64)), pass("empty", ""),
	}}
	r.count()
	var b strings.Builder
	require.NoError(t, r.Write(&b, false))
	for line := range strings.Lines(b.String()) {
		line = strings.TrimSuffix(line, "\n")
		require.LessOrEqual(t, utf8.RuneCountInString(line), 80, line)
		require.False(t, strings.HasPrefix(line, "OK    secret"))
		require.NotContains(t, line, "\x1b")
	}
	require.Contains(t, b.String(), `PAIINIT_X\x0aOK    secret`)
	require.Contains(t, b.String(), `\x1b[2J\x202e`)
}

func TestUnknown(t *testing.T) {
	twins := func() []string { return []string{"PAIINIT_SIZE", "PAIINIT_STATE_DIR", "PAIINIT_PORT"} }
	for environ, want := range map[string]string{
		"":                             "",
		"PATH=/bin PAIINIT_SIZE=3":     "",
		"PAIINIT_SISE=3":               "PAIINIT_SISE: did you mean PAIINIT_SIZE?",
		"PAIINIT_WHAT=1":               "PAIINIT_WHAT has no meaning",
		"PAIINIT_=1":                   "PAIINIT_ has no meaning",
		"PAINIT_SIZE=1":                "PAINIT_SIZE: did you mean PAIINIT_SIZE?",
		"PAIINTI_SIZE=1":               "PAIINTI_SIZE: did you mean PAIINIT_SIZE?",
		"PAIIINIT_SIZE=1":              "PAIIINIT_SIZE: did you mean PAIINIT_SIZE?",
		"PAIINITS_SIZE=1":              "PAIINITS_SIZE: did you mean PAIINIT_SIZE?",
		"paiinit_SIZE=1":               "paiinit_SIZE: did you mean PAIINIT_SIZE?",
		"PAINIT_OTHER=1 PYTHON_SIZE=1": "",
		"PAI_JOB_NAME=1 PAIINIT=1":     "",
		"PAIINIT_TEST_REQUIRE=1":       "",
		"PAIINIT_SECRET=x PAIINIT_AGENT=y PAIINIT_ACTIVE=1 PAIINIT_PID1=3": "",
		"PAIINIT_WHAT=1 PAIINIT_WHAT=2":                                    "PAIINIT_WHAT has no meaning",
		// Kubernetes, for Services named paiinit and paiinit-ps
		"PAIINIT_SERVICE_HOST=a PAIINIT_SERVICE_PORT=1 PAIINIT_PORT=tcp://a PAIINIT_PORT_1_TCP_ADDR=a": "",
		"PAIINIT_PS_SERVICE_HOST=a PAIINIT_PS_PORT=tcp://a PAIINIT_PS_SERVICE_PORT_SSH=1":              "",
	} {
		require.Equal(t, want, strings.Join(Unknown(strings.Fields(environ), twins, cmdline.Closest), ", "), environ)
	}
	// Almost every environment has nothing to compare: then no list is made.
	Unknown([]string{"PATH=/bin", "PYTHONPATH=x", "PWD=/"}, func() []string { panic("not needed") }, cmdline.Closest)
}

// This machine answers.
func TestThisSystem(t *testing.T) {
	s := ThisSystem()
	total, free, err := s.Space("/")
	require.NoError(t, err)
	require.Positive(t, total)
	require.LessOrEqual(t, free, total)
	_, _, err = s.Space("/nowhere")
	require.ErrorContains(t, err, "/nowhere cannot be used")
	require.NoError(t, s.Writable(t.TempDir()))
	require.ErrorContains(t, s.Writable("/nowhere"), "/nowhere is not writable")
	require.Equal(t, os.Getpid(), s.PID)
	require.Positive(t, s.NoFile)
	require.False(t, s.Now().Before(s.Built))
}

func TestBytesText(t *testing.T) {
	var got []string
	for _, n := range []uint64{0, 1023, 1024, 1536, 64 << 20, 1<<30 - 1, math.MaxUint64} {
		got = append(got, bytesText(n))
	}
	require.Equal(t, "0 bytes, 1023 bytes, 1 KiB, 1.5 KiB, 64 MiB, 1024 MiB, 16 EiB", strings.Join(got, ", "))
}
