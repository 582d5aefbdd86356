package main

import (
	"log/slog"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/rendezvous"
	"github.com/paiinit/paiinit/statedir"
)

func TestCheckArguments(t *testing.T) {
	for _, tt := range []struct{ variables, line, says, advice string }{
		{"", "a {nothing}", "", ""},
		{"PAIINIT_TEMPLATE=1", "{nothing} {rank} ${name} {{nothing} --exec=all", "", ""},
		{"", "--exec leader --worker-args --headless --leader-args=--api a", "", ""},
		{"PAIINIT_WORKER_ARGS={nothing}", "--exec all a", "", ""},
		{"PAIINIT_TEMPLATE=1", "a --x={rnak}",
			`--template (PAIINIT_TEMPLATE): the argument "--x={rnak}" has the unknown word {rnak}; known are {rank} ` +
				`{size} {index} {role} {alias} {host} {master} {port} {slots}; write {{rnak} for the text {rnak}`,
			"did you mean {rank}? see paiinit run --help"},
		{"PAIINIT_WORKER_ARGS={nothing}", "--exec all --template a",
			`--template (PAIINIT_TEMPLATE): the argument "{nothing}" has the unknown word {nothing}; ` +
				`known are {rank} {size} {index} {role} {alias} {host} {master} {port} {slots}; ` +
				`write {{nothing} for the text {nothing}`,
			"see paiinit run --help"},
		{"PAIINIT_LEADER_ARGS='a", "--exec all a",
			`--leader-args (PAIINIT_LEADER_ARGS) is "'a": the quote ' has no end`, "see paiinit run --help"},
		{"", `--worker-args=a\ --exec leader a`,
			`--worker-args (PAIINIT_WORKER_ARGS) is "a\\": nothing follows the last backslash`,
			"see paiinit run --help"},
		{"", "--worker-args b a", "--worker-args (PAIINIT_WORKER_ARGS) needs --exec leader or --exec all",
			"see paiinit run --help"},
		{"PAIINIT_LEADER_ARGS=b", "a", "--leader-args (PAIINIT_LEADER_ARGS) needs --exec leader or --exec all",
			"see paiinit run --help"},
	} {
		none := func(string) bool { return false }
		s := parse(t, strings.Fields(tt.variables), none, strings.Fields(tt.line)...)
		err := s.checkArguments()
		if tt.says == "" {
			require.NoError(t, err, "%+v", tt)
			continue
		}
		require.EqualError(t, err, tt.says)
		require.Equal(t, statusUsage, statusOf(err))
		require.Equal(t, tt.advice, hint(err, "run", s.command))
	}
}

// The command lines of docs/leader.md become those of the frameworks' own documentation: vLLM's
// docs/serving/parallelism_scaling.md ("Running vLLM with MultiProcessing"), at commit 096bd6a, and SGLang's
// references/multi_node_deployment/multi_node.html, both as of November 2026.
func TestLeaderRecipes(t *testing.T) {
	page, err := os.ReadFile("../../docs/leader.md")
	require.NoError(t, err)
	got := make(map[string][]string)
	for line := range strings.Lines(string(page)) {
		words, err := launch.SplitWords(line)
		recipe := strings.HasPrefix(line, "paiinit --exec leader --template ") && !strings.Contains(line, " -- sh ")
		if err != nil || !recipe {
			continue
		}
		s := parse(t, nil, func(string) bool { return false }, words[1:]...)
		require.NoError(t, s.checkArguments())
		r := rendezvous.Roster{Members: membersOf("worker", "worker")}
		for rank := range r.Members {
			r.Members[rank].Nonce, r.Members[rank].Task = strconv.Itoa(rank), 20000
			r.Members[rank].Addr = netip.MustParseAddrPort("172.16.4.52:12345")
		}
		for rank := range r.Members {
			id := identity{settings: s, nonce: strconv.Itoa(rank), state: new(statedir.Dir)}
			args, err := (&agreement{identity: &id, roster: r}).commandLine(nil)
			require.NoError(t, err)
			got[s.command[0]] = append(got[s.command[0]], strings.Join(args, " "))
		}
	}
	const vllm = "vllm serve MODEL --tensor-parallel-size 8 --pipeline-parallel-size 2 --nnodes 2"
	const sglang = "python3 -m sglang.launch_server --model-path MODEL --tp 16 " +
		"--dist-init-addr 172.16.4.52:20000 --nnodes 2"
	require.Equal(t, map[string][]string{
		"vllm": {
			vllm + " --node-rank 0 --master-addr 172.16.4.52 --master-port 20000",
			vllm + " --node-rank 1 --master-addr 172.16.4.52 --master-port 20000 --headless",
		},
		"python3": {sglang + " --node-rank 0", sglang + " --node-rank 1"},
	}, got)
}

func TestCommandLine(t *testing.T) {
	r := rendezvous.Roster{Members: membersOf("head", "worker", "worker")}
	r.Members[2].Index, r.Members[2].Alias = -1, "worker-2" // not known
	for rank := range r.Members {
		m := &r.Members[rank]
		m.Nonce, m.Slots = strconv.Itoa(rank), 8
		m.Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(rank)}), 12345)
		m.Task = 20000 + rank
	}
	s := settings{command: []string{"{rank}", "{role}-{index}:{alias}:{slots}", "NODE_RANK", "--at={master}:{port}"}}
	s.exec, s.leaderArgs, s.workerArgs = execAll, "--api '{host} 1'", "--headless $HOME"
	line := func(rank int) string {
		id := identity{
			settings: s, nonce: strconv.Itoa(rank), log: slog.New(slog.DiscardHandler), state: new(statedir.Dir),
		}
		args, err := (&agreement{identity: &id, roster: r}).commandLine([]string{"NODE_RANK=" + strconv.Itoa(rank)})
		require.NoError(t, err)
		return strings.Join(args, "|")
	}
	require.Equal(t, "{rank}|{role}-{index}:{alias}:{slots}|1|--at={master}:{port}|--headless|$HOME", line(1))
	s.template = true
	require.Equal(t, "{rank}|head-0:head-0:8|0|--at=10.0.0.0:20000|--api|10.0.0.0 1", line(0))
	require.Equal(t, "{rank}|worker-0:worker-0:8|1|--at=10.0.0.0:20000|--headless|$HOME", line(1))
	require.Equal(t, "{rank}|worker-2:worker-2:8|2|--at=10.0.0.0:20000|--headless|$HOME", line(2))
}
