package launch

import (
	"strconv"
	"strings"
)

// torchrun starts one process per slot of its host.
var torchrun = Launcher{
	Name:        "torchrun",
	Programs:    []string{"torchrun"},
	HostModules: []string{"torch.distributed.run", "torch.distributed.launch", "torch.distributed.elastic"},
	Starts:      hostProcesses,

	RankVariables: []string{"LOCAL_RANK"}, // also for the processes that DeepSpeed starts on one host
	Blames:        torchrunBlames,
}

// torch returns PyTorch's variables: torchrun reads each option --foo-bar from PET_FOO_BAR
// (torch/distributed/argparse_util.py), and a process that calls init_process_group("env://") reads the others
// (torch/distributed/rendezvous.py). Both also read MASTER_ADDR and MASTER_PORT, which every job has.
func torch(t Tasks) []Var {
	var v table
	if len(t.Ranks) == 0 {
		return nil
	}
	size, rank, master := strconv.Itoa(len(t.Ranks)), strconv.Itoa(t.Self), t.Ranks[0]
	v.set("PET_NNODES", size, "torchrun runs on all ranks of this job")
	v.set("PET_NODE_RANK", rank, "torchrun knows which node this is")
	if n := t.Ranks[t.Self].Slots; n > 0 {
		v.set("PET_NPROC_PER_NODE", strconv.Itoa(n), "torchrun starts as many processes as this rank has slots")
	}
	v.set("PET_MASTER_ADDR", bracketed(master.Addr), "torchrun meets on rank 0")
	v.set("PET_MASTER_PORT", strconv.Itoa(master.Port), "torchrun meets on a port that paiinit kept free on rank 0")
	v.set("PET_RDZV_ENDPOINT", master.address(), "torchrun --rdzv-backend c10d meets on rank 0, too")
	v.set("PET_RDZV_ID", t.Job, "torchrun --rdzv-backend c10d meets only nodes of this job")
	if !t.Spawns && !t.Cluster {
		v.set("RANK", rank, "init_process_group(\"env://\"): every rank is one process")
		v.set("WORLD_SIZE", size, "init_process_group(\"env://\"): every rank is one process")
		v.set("LOCAL_RANK", "0", "the only process of its host")
		v.set("LOCAL_WORLD_SIZE", "1", "the only process of its host")
	}
	return v
}

// torchrunBlames reads the table of torchrun's ChildFailedError
// (torch/distributed/elastic/multiprocessing/errors/__init__.py, _FAILURE_FORMAT_TEMPLATE) and its own traceback, which
// ends there.
func torchrunBlames(p *printed, b *Blame) {
	const childFailed = `^(?:torch\.distributed\.elastic\.multiprocessing\.errors\.)?ChildFailedError:\s*$`
	for i := range p.find("ChildFailedError:", childFailed) {
		begin, end := i, i+1
		for begin > 0 && !strings.HasPrefix(p.lines[begin], "Traceback (most recent call last):") {
			begin--
		}
		if !strings.HasPrefix(p.lines[begin], "Traceback") {
			begin = i
		}
		root := len(p.lines)
		for ; end < len(p.lines); end++ {
			if strings.HasPrefix(p.lines[end], "Root Cause ") {
				root = end
			}
			if end > root && isRule(p.lines[end]) {
				end++
				break
			}
		}
		p.claim(begin, end)
		var host, rank, local, code string
		for _, l := range p.lines[min(root, end):end] {
			key, value, _ := strings.Cut(strings.TrimSpace(l), ":")
			word, _, _ := strings.Cut(strings.TrimSpace(value), " ")
			switch strings.TrimSpace(key) {
			case "host":
				host = word
			case "rank":
				rank = word
				_, local, _ = strings.Cut(value, "local_rank: ")
				local = strings.TrimSuffix(strings.TrimSpace(local), ")")
			case "exitcode":
				code = word
			}
		}
		if rank != "" {
			blame := negated("rank "+rank, rank, host, number(code))
			blame.Local = local
			b.set(blame)
		}
	}
	// torch/distributed/elastic/multiprocessing/api.py and torch/distributed/run.py
	p.claimAll("torch/distributed/", `torch/distributed/elastic/multiprocessing/api\.py:\d+\] `+
		`(?:Sending process \d+ closing signal|failed )`+
		`|torch/distributed/elastic/agent/server/api\.py:\d+\] `+
		`|torch/distributed/elastic/multiprocessing/errors/error_handler\.py:\d+\] no error file defined `+
		`|torch/distributed/run\.py:\d+\] (?:\*+|Setting OMP_NUM_THREADS .*)?$`)
}
