package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// virtualSizes are the sizes of the simulated jobs, as TestScale reads them.
const virtualSizes = "64,256,1000,4000,16000"

// virtual holds what TestScale logs of one job size.
type virtual struct {
	size     int
	took     time.Duration // to the agreement
	trips    string        // the same in round trips
	messages string        // at rank 0, per rank
	bytes    string        // at rank 0, per rank
	table    string        // bytes
	heap     int           // bytes per rank
}

// measureVirtual simulates jobs that are larger than the machine has room for. The figures do not depend on its speed.
func measureVirtual(ctx context.Context) (report, error) {
	// Where processors are short, the largest job takes longer than go test allows by default.
	cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-timeout=0", "-v", "-run=^TestScale$", "./rendezvous")
	cmd.Env = append(os.Environ(), "PAIINIT_TEST_SIZES="+virtualSizes)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return report{}, fmt.Errorf("simulating jobs of %s ranks: %w\n%s", virtualSizes, err, out)
	}
	sizes, err := numbers(virtualSizes)
	if err != nil {
		return report{}, err
	}
	jobs, err := readVirtual(string(out), sizes)
	if err != nil {
		return report{}, err
	}
	return virtualReport(jobs), nil
}

// readVirtual finds the line of each size in the output of TestScale.
func readVirtual(out string, sizes []int) (jobs []virtual, err error) {
	line := regexp.MustCompile(`(?m)^ *scale_test\.go:\d+: +(\d+) +(\S+) +([\d.]+) +([\d.]+) +(\d+) +(\d+) +(\d+)$`)
	logged := make(map[int]virtual)
	for _, m := range line.FindAllStringSubmatch(out, -1) {
		v := virtual{trips: m[3], messages: m[4], bytes: m[5], table: m[6]}
		if v.size, err = strconv.Atoi(m[1]); err == nil {
			v.took, err = time.ParseDuration(m[2])
		}
		if err == nil {
			v.heap, err = strconv.Atoi(m[7])
		}
		if err != nil {
			return nil, fmt.Errorf("TestScale logs %q: %w", strings.TrimSpace(m[0]), err)
		}
		logged[v.size] = v
	}
	for _, size := range sizes {
		v, ok := logged[size]
		if !ok {
			return nil, fmt.Errorf("TestScale logs no figures of %d ranks:\n%s", size, out)
		}
		jobs = append(jobs, v)
	}
	return jobs, nil
}

func virtualReport(jobs []virtual) report {
	r := report{
		name:  "virtual",
		title: "Many ranks in virtual time",
		intro: []string{
			fmt.Sprintf("Simulated jobs (`TestScale` of the package rendezvous): all ranks run in one process and "+
				"talk over a network in memory, in virtual time, in which computing takes no time. Rank 0 knows the "+
				"addresses of all ranks, and the others know that of rank 0. All start at the same moment, and a "+
				"round trip takes 0.2 ms. The figures are the protocol's own: logins and bandwidth are not "+
				"simulated. One run on a machine with %d CPUs, Linux %s, %s.",
				runtime.NumCPU(), release(), runtime.Version()),
			"The ranks agree when Gather has returned on all of them. The rows of messages and bytes count what rank " +
				"0 sends and receives, divided by the number of other ranks. The table lists all ranks: rank 0 sends " +
				"it itself to up to 1,000 ranks; in a larger job the ranks pass it on. The heap is that of the whole " +
				"process; its ranks share one unpacked table.",
		},
		rows: [][]string{{"start to agreement, ms"}, {"the same in round trips"}, {"messages at rank 0, per rank"},
			{"bytes at rank 0, per rank"}, {"size of the table, bytes"}, {"heap after the agreement, per rank, kB"}},
	}
	for _, v := range jobs {
		r.columns = append(r.columns, fmt.Sprintf("%d ranks", v.size))
		for i, cell := range []string{fmt.Sprintf("%.1f", v.took.Seconds()*1e3), v.trips, v.messages, v.bytes, v.table,
			fmt.Sprintf("%.0f", float64(v.heap)/1e3)} {
			r.rows[i] = append(r.rows[i], cell)
		}
	}
	return r
}
