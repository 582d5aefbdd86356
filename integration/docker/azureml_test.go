package docker

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// azureSize is the number of nodes of a job, and of GPUs on each. The jobs of docs/jobs/azureml.md have four nodes with
// four GPUs.
type azureSize struct{ nodes, gpus int }

var asDocumented = azureSize{4, 4}

// scaled replaces the counts in a command line by those of the size. The tests change nothing else in it.
func (size azureSize) scaled(command string) string {
	return strings.NewReplacer(
		"-np 16", fmt.Sprint("-np ", size.nodes*size.gpus),
		"--nproc_per_node 4", fmt.Sprint("--nproc_per_node ", size.gpus),
		"--nnodes 4", fmt.Sprint("--nnodes ", size.nodes)).Replace(command)
}

// azureTime is the timeout of a job of sixteen ranks, beside other tests.
const azureTime = 3 * time.Minute

// azureMLJob is the part of a file of examples/azureml that the tests use.
type azureMLJob struct {
	Command      string
	Variables    map[string]string `yaml:"environment_variables"`
	Distribution struct {
		Type    string
		Servers int `yaml:"parameter_server_count"`
		Workers int `yaml:"worker_count"`
	}
}

// azureML prepares a job of examples/azureml with the program as its train.py. As on Azure ML, the nodes have two
// networks, each container uses the network of its node, and bash runs the command.
//
// Azure ML's own files and services are missing, and GPUs. The test assumes that each task of TensorFlow's distribution
// has a container of its own.
func azureML(t *testing.T, image func() (string, error), size azureSize, file, program, args string,
	options ...string) (*job, []func()) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "examples/azureml", file))
	require.NoError(t, err)
	text = submitted(t, text)
	var job azureMLJob
	require.NoError(t, yaml.Unmarshal(text, &job))
	code := t.TempDir()
	train, err := os.ReadFile(filepath.Join(root, program))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(code, "train.py"), train, 0o600))

	var names []string
	for i := range size.nodes {
		names = append(names, fmt.Sprintf("tvmps-%d", i))
	}
	s := newSite(t, image, names...)
	s.within = azureTime
	command := size.scaled(strings.TrimSpace(job.Command)) + args
	var start []func()
	add := func(node int, variables ...string) {
		options := append([]string{"--volume", code + ":/src:ro", "--workdir", "/src",
			"--entrypoint", "bash"}, options...)
		for name, value := range job.Variables {
			variables = append(variables, name+"="+value)
		}
		for _, v := range append(s.azureNode(size, node), variables...) {
			options = append(options, "--env", v)
		}
		start = append(start, func() { s.run(t, node, append(options, "IMAGE", "-c", command)...) })
	}
	switch job.Distribution.Type {
	case "pytorch":
		for i := range size.nodes {
			add(i, "MASTER_ADDR="+s.addresses[0], "MASTER_PORT=6105", fmt.Sprint("NODE_RANK=", i),
				fmt.Sprint("RANK=", i),
				"LOCAL_RANK=0", fmt.Sprint("WORLD_SIZE=", size.nodes))
		}
	case "tensorflow":
		cluster := make(map[string][]string)
		task := func(kind string, i, port int) {
			cluster[kind] = append(cluster[kind], fmt.Sprintf("%s:%d", s.addresses[i%size.nodes], port+i/size.nodes))
		}
		for i := range job.Distribution.Workers {
			task("worker", i, 2222)
		}
		for i := range job.Distribution.Servers {
			task("ps", i, 3333)
		}
		for _, kind := range []string{"worker", "ps"} {
			for i := range cluster[kind] {
				own := map[string]any{"type": kind, "index": i}
				config, err := json.Marshal(map[string]any{"cluster": cluster, "task": own, "environment": "cloud"})
				require.NoError(t, err)
				add(i%size.nodes, "TF_CONFIG="+string(config))
			}
		}
	default:
		t.Fatalf("%s: distribution %q", file, job.Distribution.Type)
	}
	return s.job, start
}

// azureNode returns the variables that Azure ML sets on a node for every distribution.
func (s *site) azureNode(size azureSize, node int) []string {
	ccp := fmt.Sprint(size.nodes)
	for _, addr := range s.addresses {
		ccp += " " + addr + " 24"
	}
	return []string{
		"AZUREML_RUN_ID=mnist_1617000000_abcd1234", fmt.Sprint("AZUREML_NODE_COUNT=", size.nodes),
		"AZ_BATCH_JOB_ID=mt-batchjob001",
		"AZ_BATCH_HOST_LIST=" + strings.Join(s.addresses, ","), "AZ_BATCH_NODE_LIST=" + strings.Join(s.addresses, ";"),
		"AZ_BATCH_MASTER_NODE=" + s.addresses[0] + ":6000", fmt.Sprint("AZ_BATCH_IS_CURRENT_NODE_MASTER=", node == 0),
		"CCP_NODES=" + ccp, "AZ_BATCHAI_MPI_MASTER_NODE=" + s.addresses[0],
		fmt.Sprint("AZ_BATCHAI_NUM_GPUS=", size.gpus),
	}
}

// stockConfOption mounts Horovod's stock configuration of Open MPI where Debian's Open MPI reads it.
func stockConfOption(t *testing.T) []string {
	t.Helper()
	conf := filepath.Join(t.TempDir(), "conf")
	require.NoError(t, os.WriteFile(conf, []byte(stockConf), 0o600))
	return []string{"--volume", conf + ":/etc/openmpi/openmpi-mca-params.conf:ro"}
}

func TestAzureMLMPI(t *testing.T) {
	done := "sum = 136, expected 136 (tvmps-0, tvmps-1, tvmps-2, tvmps-3)"
	documented(t, done, openMPIFailure, func(t *testing.T, args string) (*job, []func()) {
		return azureML(t, horovodSuites[false], asDocumented, "mpi.yml", "examples/allreduce.py",
			args, stockConfOption(t)...)
	})
}

// TestAzureMLHorovodrun: testdata/horovod stands in for horovodrun (newHorovodJob). The test omits the configuration of
// Horovod's own images, which conflicts with a horovodrun that looks for the network itself.
func TestAzureMLHorovodrun(t *testing.T) {
	testdata, err := filepath.Abs("testdata")
	require.NoError(t, err)
	done := "sum = 10, expected 10 (tvmps-0, tvmps-1)"
	documented(t, done, openMPIFailure, func(t *testing.T, args string) (*job, []func()) {
		return azureML(t, horovodSuites[false], azureSize{2, 2}, "horovodrun.yml", "examples/allreduce.py", args,
			"--volume", testdata+"/horovod:/usr/local/lib/python3.11/dist-packages/horovod:ro",
			"--volume", testdata+"/horovod/horovodrun:/usr/local/bin/horovodrun:ro")
	})
}

// TestAzureMLTensorFlow: integration/testdata/train.py stands in for TensorFlow.
func TestAzureMLTensorFlow(t *testing.T) {
	done := "worker 0 of 4 with 0 parameter servers"
	documented(t, done, tensorFlowFailure, func(t *testing.T, args string) (*job, []func()) {
		return azureML(t, horovodSuites[false], asDocumented, "tensorflow.yml", "integration/testdata/train.py", args)
	})
}

func TestAzureMLParameterServers(t *testing.T) {
	done := "worker 0 of 4 with 2 parameter servers"
	documented(t, done, tensorFlowFailure, func(t *testing.T, args string) (*job, []func()) {
		return azureML(t, horovodSuites[false], asDocumented, "tensorflow-ps.yml",
			"integration/testdata/train.py", args)
	})
}

// TestAzureMLPyTorch: the test uses trixie, because bookworm's PyTorch 1.13 rejects its own default of --redirects and
// --tee (TestTorch).
func TestAzureMLPyTorch(t *testing.T) {
	site := filepath.Join(t.TempDir(), "sitecustomize.py")
	require.NoError(t, os.WriteFile(site, []byte(withoutLibuv), 0o600))
	documented(t, "rank 0 of 4: loss", torchFailure, func(t *testing.T, args string) (*job, []func()) {
		j, start := azureML(t, suites["trixie"], azureSize{2, 2}, "pytorch.yml", "examples/ddp.py", args,
			"--env", "USE_LIBUV=0", "--env", "PYTHONPATH=/site", "--volume", site+":/site/sitecustomize.py:ro")
		j.within = torchTime
		return j, start
	})
}
