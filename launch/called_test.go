package launch

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCalled(t *testing.T) {
	for line, want := range map[string]string{
		"horovodrun -np 4 python train.py":                              "horovodrun",
		"/usr/local/bin/horovodrun -np 4":                               "horovodrun",
		"/usr/bin/python3 /usr/local/bin/horovodrun -np 4":              "horovodrun",
		"python3.11 -u -W ignore -X dev -m horovod.runner.launch -np 4": "horovodrun",
		"python -mhorovod.run.run -np 4":                                "horovodrun",
		"/bin/sh /usr/bin/horovodrun -np 4":                             "horovodrun",
		"bash -eu /opt/mpirun -np 4":                                    "mpirun",
		"deepspeed train.py":                                            "deepspeed",
		"python -m deepspeed.launcher.runner train.py":                  "deepspeed",
		"python -u -m deepspeed.launcher.launch train.py":               "", // deepspeed starts it on every host
		"/usr/bin/mpiexec.hydra -n 4 x":                                 "mpiexec.hydra",
		"bash -lc horovodrun":                                           "",
		"bash -c horovodrun":                                            "",
		"python -c horovodrun":                                          "",
		"python train.py horovodrun":                                    "",
		"python -":                                                      "",
		"python -m":                                                     "",
		"sh":                                                            "",
		"torchrun horovodrun":                                           "",
		"":                                                              "",
	} {
		name, args := Called(strings.Fields(line))
		require.Equal(t, want, name, line)
		if want != "" && strings.HasPrefix(want, "h") {
			require.Equal(t, "-np 4", strings.Join(args[:2], " "), line)
		}
	}
	for line, want := range map[string]bool{
		"horovodrun -np 2 x": true, "python -m deepspeed.launcher.runner x": true, "mpirun x": true,
		"pdsh -w a x": true, "srun x": true,
		"torchrun x": false, "python x": false, "bash x": false, "": false,
	} {
		require.Equal(t, want, ReachesHosts(strings.Fields(line)), line)
	}
}

func TestProbe(t *testing.T) {
	for command, want := range map[string]bool{
		"true": true, " true ": true, "/usr/bin/python3 -m horovod.runner.task_fn gAR= gAR=": true,
		"": false, "true; train": false, "hostname": false, "python -m horovod.runner.run_task a": false,
		"python -m": false,
		`cd /w > /dev/null 2>&1 ; env HOROVOD_RANK=3 python train.py`: false,
	} {
		require.Equal(t, want, isProbe(command), command)
	}
}

func TestReadHorovodrun(t *testing.T) {
	for line, want := range map[string]HostLine{
		"-np 4 python train.py -H x":   {Request: Request{Ranks: 4}, Launches: true, Options: 2, readable: true},
		"--num-proc=4 --gloo python x": {Request: Request{Ranks: 4}, Launches: true, Options: 2, readable: true},
		"--num-p 4 python x":           {Request: Request{Ranks: 4}, Launches: true, Options: 2, readable: true},
		"python x":                     {Launches: true, readable: true},
		"-np 2 -H a:1,b:2 x": {
			Request: Request{Ranks: 2, Hosts: []string{"a", "b", "b"}}, Launches: true, Given: "-H", Options: 4,
			readable: true,
		},
		"-np 2 -Ha:1 x": {
			Request: Request{Ranks: 2, Hosts: []string{"a"}}, Launches: true, Given: "-Ha:1", Options: 3,
			readable: true,
		},
		"-np 2 --hosts=a:1 x": {
			Request: Request{Ranks: 2, Hosts: []string{"a"}}, Launches: true, Given: "--hosts=a:1", Options: 3,
			readable: true,
		},
		"-np 2 -hostfile f x": {
			Request: Request{Ranks: 2, Hostfile: "f"}, Launches: true, Given: "-hostfile", Options: 4, readable: true,
		},
		"-np 2 --hostf f x": {
			Request: Request{Ranks: 2, Hostfile: "f"}, Launches: true, Given: "--hostf", Options: 4, readable: true,
		},
		"-np 2 --config-file c.yaml x": {
			Request: Request{Ranks: 2}, Launches: true, Given: "--config-file", Options: 4, readable: true,
		},
		"-np 2 --host-discovery-script s x": {
			Request: Request{Ranks: 2}, Launches: true, Given: "--host-discovery-script", Options: 4,
		},
		"-np 2 --min-np 1 --max-np 3 x": {Request: Request{Ranks: 2}, Launches: true, Given: "--max-np", Options: 6},
		"--blacklist-cooldown-range 1 2 -np 2 x": {
			Request: Request{Ranks: 2}, Launches: true, Given: "--blacklist-cooldown-range", Options: 5,
		},
		"--network-interface eth0 -np 2 x": {
			Request: Request{Ranks: 2}, Launches: true, Network: "--network-interface", Options: 4, readable: true,
		},
		"--mpi-args=--x -p 22 -i /k -np 1 x -y": {
			Request: Request{Ranks: 1}, Launches: true, Options: 7, readable: true,
		},
		"--version":             {Options: 1, readable: true},
		"-np 2 --check-build":   {Request: Request{Ranks: 2}, Options: 3, readable: true},
		"-h x":                  {Options: 1, readable: true},
		"-np 4":                 {Request: Request{Ranks: 4}, Options: 2, readable: true},
		"":                      {readable: true},
		"-np x y":               {Launches: true, Options: 2},
		"--new 7 -np 4 x":       {Launches: true, Unread: "--new", Options: 1}, // 7 may be COMMAND
		"--new 7 --hosts=a:1 x": {Launches: true, Unread: "--new", Given: "--hosts", Options: 1},
		"-np 4 -- x":            {Request: Request{Ranks: 4}, Launches: true, Options: 2, readable: true},
	} {
		require.Equal(t, want, readHorovodrun(strings.Fields(line)), line)
	}
}

func TestAskedOfOthers(t *testing.T) {
	for line, want := range map[string]*Request{
		"horovodrun -np 4 python x":                      {Ranks: 4},
		"horovodrun -np 4 -H a:4 python x":               {Ranks: 4, Hosts: []string{"a", "a", "a", "a"}},
		"python -m horovod.runner.launch -np 4 python x": {Ranks: 4},
		"horovodrun -np 4 --min-np 2 x":                  nil,
		"horovodrun --check-build":                       nil,
		"horovodrun -np 4 --jsrun x":                     nil,
		"deepspeed x":                                    {Hostfile: deepSpeedHostfile, HostfileOptional: true},
		"deepspeed -H f --num_gpus 2 x --num_nodes 1":    {Hostfile: "f"},
		"deepspeed --num_nodes=1 x": {
			Hostfile: deepSpeedHostfile, HostfileOptional: true, Nodes: 1,
		},
		"deepspeed --include a@b:0,2 x": {
			Hostfile: deepSpeedHostfile, HostfileOptional: true, Hosts: []string{"a", "b"},
		},
		"deepspeed --exclude a@b:0 x": {
			Hostfile: deepSpeedHostfile, HostfileOptional: true, Without: []string{"a"},
		},
		"deepspeed --launcher openmpi --force_multi x": {Hostfile: deepSpeedHostfile, HostfileOptional: true},
		"deepspeed --launcher slurm x":                 nil,
		"deepspeed --no_ssh --node_rank 1 x":           nil,
		"deepspeed --autotuning run x":                 nil,
		"deepspeed --unheard x":                        nil,
		"deepspeed --num_nodes 1:2 x":                  nil,
		"deepspeed":                                    nil,
		"python x":                                     nil,
	} {
		got, ok := Asked(strings.Fields(line))
		require.Equal(t, want != nil, ok, line)
		if ok {
			require.Equal(t, *want, got, line)
		}
	}
	require.Equal(t, 1, Request{Nodes: 1}.FewestHosts([]int{2, 2, 2}))
	require.Equal(t, 3, Request{}.FewestHosts([]int{2, 2, 2}))
	require.Equal(t, 2, Request{Ranks: 3}.FewestHosts([]int{2, 2, 2}))
	require.Equal(t, 2, Request{Nodes: 5}.FewestHosts([]int{2, 2}))
}
