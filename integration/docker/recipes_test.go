package docker

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// recipes are the files of examples/compose for servers, clusters and training, with what one of their containers
// writes when it has done its work. Dask and torchrun are those of Debian; stand-ins take the place of the others.
var recipes = map[string]struct {
	size    int
	says    string
	serving string // the program of a server, which must be told to end
}{
	"vllm":       {2, "serving at 8000", "vllm"},
	"vllm-ray":   {2, "serving at 8000", "vllm"},
	"sglang":     {2, "serving at 30000", "sglang"},
	"ray":        {4, "all nodes are there", ""},
	"dask":       {4, "sum of 1000 squares = 332833500, expected 332833500, on 3 hosts", ""},
	"torchrun":   {4, "rank 7 of 8: ", ""},
	"accelerate": {4, "2 processes", ""},
	"deepspeed":  {4, "4 hosts, slots=2", ""},
}

// firstService is the service of a recipe beside worker.
var firstService = map[string]string{
	"vllm": "leader", "vllm-ray": "leader", "sglang": "leader", "ray": "leader", "dask": "leader",
	"deepspeed": "launcher",
}

// endServer ends the Python program whose command line has a word, with status 0.
const endServer = `import os, signal, sys
for pid in filter(str.isdigit, os.listdir("/proc")):
    words = open(f"/proc/{pid}/cmdline", "rb").read().decode().split("\0")
    if words[0].endswith("python3") and words[2:3] == sys.argv[1:2]:
        os.kill(int(pid), signal.SIGUSR1)
`

func TestRecipes(t *testing.T) {
	t.Parallel()
	needEngine(t)
	image, err := suites["trixie"]()
	require.NoError(t, err)
	for name, r := range recipes {
		t.Run(name, func(t *testing.T) {
			p := newProjectOf(t, name+".yaml", image, standIns(t, name))
			p.size, p.within = r.size, torchTime
			if firstService[name] == "" {
				p.alone = r.size
			}
			p.env = append(p.env, "RUNTIME=runc", "PORT=0")
			ctx, cancel := context.WithTimeout(t.Context(), torchTime)
			defer cancel()
			_, err := p.compose(ctx, "up", "--detach", "--no-build", "--scale", p.workers())
			require.NoError(t, err)
			if r.serving != "" {
				leader := p.service(t, "leader", 1)
				p.follow(ctx, t, leader, r.says, 1)
				begin := time.Now()
				_, err = docker(ctx, "exec", leader, "python3", "-c", endServer, r.serving)
				requireStatus(t, p.wait(ctx, t), 0)
				t.Log("all containers ended", time.Since(begin), "after rank 0's server was told to; docker exec:", err)
			}
			requireStatus(t, p.wait(ctx, t), 0)
			logs := p.logs(t)
			assert.Contains(t, logs, r.says)
			assert.NotContains(t, logs, p.secret)
		})
	}
}

// standIns returns a compose file that makes paiinit the ENTRYPOINT of a recipe's containers, with stand-ins for the
// programs that Debian does not have.
func standIns(t *testing.T, recipe string) string {
	t.Helper()
	program, err := binary()
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o755)) //nolint:gosec // the containers read it
	script, err := os.ReadFile(filepath.Join(root, "integration/testdata/clusters.py"))
	require.NoError(t, err)
	const run = "os.execvp('python3', ['python3', '/standin/clusters.py', %s])\n"
	files := map[string]string{
		"clusters.py":             string(script),
		"driver.py":               "import os\n" + fmt.Sprintf(run, "'driver'"),
		"train.py":                "",
		"sglang/launch_server.py": "import os, sys\n" + fmt.Sprintf(run, "'sglang', *sys.argv[1:]"),
		"deepspeed": `#!/bin/sh
for h in $(cut -d" " -f1 /job/hostfile); do
	ssh $h "echo $(grep -c . /job/hostfile) hosts, $(grep -m1 -o slots=. /job/hostfile)" || exit
done
`,
	}
	for _, name := range []string{"vllm", "ray", "accelerate"} {
		files[name] = "#!/bin/sh\nexec python3 /standin/clusters.py " + name + ` "$@"` + "\n"
	}
	if recipe == "torchrun" {
		files["sitecustomize.py"] = withoutLibuv
	}
	for name, text := range files {
		file := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o755)) //nolint:gosec // a program
	}
	var file strings.Builder
	file.WriteString("services:\n")
	for _, service := range []string{firstService[recipe], "worker"} {
		if service == "" {
			continue
		}
		fmt.Fprintf(&file, `  %s:
    entrypoint: [/usr/local/bin/paiinit, --]
    environment:
      PATH: /standin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
      PYTHONPATH: /standin
      USE_LIBUV: "0"
    volumes:
      - %s:/usr/local/bin/paiinit:ro
      - %s:/standin:ro
      - %s:/app:ro
`, service, program, dir, dir)
	}
	return file.String()
}
