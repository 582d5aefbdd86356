package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/integration/lab"
)

// fabricSize is the number of hosts in the job of this benchmark.
const fabricSize = 4

// kernel describes the verbs devices that the kernel of each host shows, and holds the times to look at them.
type kernel struct {
	devices, gids int
	ethernet      bool
	slow          time.Duration // how long a driver sleeps before it tells the state of a port
	binds         map[string]string

	look, worker, zero series // ms
}

func (k *kernel) name() string {
	switch {
	case k.devices == 0:
		return "no devices"
	case k.slow > 0:
		return fmt.Sprintf("a device that answers after %v", k.slow)
	}
	network := "InfiniBand"
	if k.ethernet {
		network = "RoCE"
	}
	return fmt.Sprintf("%d devices, %d GIDs each (%s)", k.devices, k.gids, network)
}

// build writes the files that paiinit reads below /sys/class and /dev.
func (k *kernel) build(dir string) error {
	for _, sub := range []string{"class/infiniband", "class/infiniband_verbs", "class/net/lo", "nodes", "shm"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return err
		}
	}
	for d := range k.devices {
		device := fmt.Sprintf("class/infiniband/mlx5_%d/", d)
		files := map[string]string{
			device + "node_guid": fmt.Sprintf("a088:c203:0074:cf%02x", d),
			fmt.Sprintf("class/infiniband_verbs/uverbs%d/ibdev", d): fmt.Sprintf("mlx5_%d", d),
			fmt.Sprintf("nodes/uverbs%d", d):                        "",
			device + "ports/1/state":                                "4: ACTIVE",
			device + "ports/1/rate":                                 "400 Gb/sec (4X NDR)",
			device + "ports/1/link_layer":                           "InfiniBand",
			device + "ports/1/pkeys/0":                              "0xffff",
		}
		kind := "IB/RoCE v1"
		if k.ethernet {
			files[device+"ports/1/link_layer"], kind = "Ethernet", "RoCE v2"
		}
		for i := range k.gids {
			gid := "0000:0000:0000:0000:0000:0000:0000:0000"
			if i < 8 {
				gid = fmt.Sprintf("fe80:0000:0000:0000:0015:5dff:fe33:%02x%02x", d, i)
				files[fmt.Sprintf("%sports/1/gid_attrs/types/%d", device, i)] = kind
				if k.ethernet {
					gid = fmt.Sprintf("0000:0000:0000:0000:0000:ffff:0a%02x:00%02x", d, i)
					files[fmt.Sprintf("%sports/1/gid_attrs/ndevs/%d", device, i)] = "lo"
				}
			}
			files[fmt.Sprintf("%sports/1/gids/%d", device, i)] = gid
		}
		for name, text := range files {
			file := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
				return err
			}
		}
	}
	if k.slow > 0 {
		state := filepath.Join(dir, "class/infiniband/mlx5_0/ports/1/state")
		if err := errors.Join(os.Remove(state), unix.Mkfifo(state, 0o600)); err != nil {
			return err
		}
		go k.answer(state)
	}
	k.binds = map[string]string{
		"/sys/class": filepath.Join(dir, "class"), "/dev/infiniband": filepath.Join(dir, "nodes"),
		"/dev/shm": filepath.Join(dir, "shm"),
	}
	for _, node := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		k.binds["/dev/"+node] = "/dev/" + node
	}
	return nil
}

// answer plays the driver until this program ends.
func (k *kernel) answer(state string) {
	for {
		f, err := os.OpenFile(state, os.O_WRONLY, 0) // blocks until a process opens the FIFO for reading
		if err == nil {                              // the next reader gets a FIFO of its own
			err = errors.Join(unix.Mkfifo(state+".next", 0o600), os.Rename(state+".next", state))
		}
		if err != nil {
			return // the measurement is over
		}
		time.AfterFunc(k.slow, func() {
			_, _ = f.WriteString("4: ACTIVE\n") // fails if the reader is gone
			_ = f.Close()
		})
	}
}

// measureFabric measures the time from the last host's start to the job's start, with and without devices that take a
// while to look at.
func measureFabric(ctx context.Context, binary string, rounds int) (report, error) {
	dir, err := os.MkdirTemp("", "paiinit-bench-")
	if err != nil {
		return report{}, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	kernels := []*kernel{{}, {devices: 1, slow: 5 * time.Millisecond}, {devices: 1, slow: 50 * time.Millisecond},
		{devices: 12, gids: 256}, {devices: 12, gids: 256, ethernet: true}}
	for i, k := range kernels {
		if err := k.build(filepath.Join(dir, strconv.Itoa(i))); err != nil {
			return report{}, err
		}
	}
	c := &cluster{inside: filepath.Join(dir, "inside"), stamp: filepath.Join(dir, "stamp"), tmpfs: []string{"/dev"}}
	defer func() { _ = c.close() }()
	if err := c.open(ctx, binary, fabricSize); err != nil {
		return report{}, err
	}
	for round := range rounds {
		for i := range kernels {
			k := kernels[(i+round)%len(kernels)]
			c.binds = k.binds
			for last, into := range map[int]*series{0: &k.zero, fabricSize - 1: &k.worker} {
				if err := c.measureLast(ctx, last, k, into); err != nil {
					return report{}, fmt.Errorf("%s: %w", k.name(), errors.Join(err, c.end(ctx, true)))
				}
			}
		}
	}
	return fabricReport(kernels, rounds), nil
}

// measureLast starts all hosts but one, then the last, and measures the time until the job starts.
func (c *cluster) measureLast(ctx context.Context, last int, k *kernel, into *series) error {
	byRank := make([]*lab.Container, fabricSize)
	start := func(i int) (err error) {
		env := []string{"PAIINIT_LOG_LEVEL=debug", "PAIINIT_SECRET=" + jobSecret, "PAIINIT_ROLE=worker",
			"PAIINIT_PEERS=" + strings.Join(c.addrs, ","), "PAIINIT_INDEX=" + strconv.Itoa(i)}
		byRank[i], err = c.start(i, env, "/run/bin/paiinit", "--", "/run/bin/stamp", "launched", "/bin/sleep", "1000")
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for i := range fabricSize {
		if i == last {
			continue
		}
		if err := start(i); err != nil {
			return err
		}
		if _, err := byRank[i].WaitLine(waiting, "listening"); err != nil {
			return err
		}
	}
	settleDown(ctx)
	if err := start(last); err != nil {
		return err
	}
	if err := into.since(ctx, byRank[last], "start", byRank[0], "launched"); err != nil {
		return err
	}
	out, err := byRank[0].Exec(ctx, "sh", "-c", "stamp a; paiinit rdma >/dev/null; stamp b")
	if err != nil {
		return err
	}
	var a, b int64
	if _, err := fmt.Sscanf(string(out), "stamp:a:%d\nstamp:b:%d\n", &a, &b); err != nil {
		return fmt.Errorf("%q: %w", out, err)
	}
	k.look = append(k.look, milliseconds(time.Duration(b-a)))
	if err := byRank[0].Signal(15); err != nil {
		return err
	}
	return c.end(ctx, false)
}

func fabricReport(kernels []*kernel, rounds int) report {
	r := report{
		name:  "fabric",
		title: "Looking at verbs devices",
		intro: []string{
			fmt.Sprintf("%d hosts in namespaces of one machine with %d CPUs, Linux %s, %s. Each has a "+
				"/sys/class/infiniband of plain files; reading those of 12 devices keeps a processor busy. All but "+
				"one wait; then the last one starts. The time is from its exec to the first line of the command on "+
				"rank 0. A host announces itself while it looks for devices, and the launch waits for the result, so "+
				"looking delays the launch only if everything else is faster. The first row is a program that only "+
				"looks and prints the result. %d rounds by turns. "+nineOfTen,
				fabricSize, runtime.NumCPU(), release(), runtime.Version(), rounds),
		},
	}
	rows := []struct {
		name string
		of   func(*kernel) series
	}{
		{"`paiinit rdma`, start to end, ms", func(k *kernel) series { return k.look }},
		{"last host to launch, ms", func(k *kernel) series { return k.worker }},
		{"last host to launch, where it is rank 0, ms", func(k *kernel) series { return k.zero }},
	}
	for _, k := range kernels {
		r.columns = append(r.columns, k.name())
	}
	for _, row := range rows {
		cells := []string{row.name}
		for _, k := range kernels {
			cells = append(cells, row.of(k).cell("%.1f"))
		}
		r.rows = append(r.rows, cells)
	}
	return r
}
