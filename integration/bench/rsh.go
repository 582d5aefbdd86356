package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/paiinit/paiinit/integration/lab"
)

// launchedHosts is the number of hosts on which the launchers start a process.
const launchedHosts = 64

const benchPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// turn is one of the commands that rank 0 measures by turns.
type turn struct {
	Name string
	Args []string
	Env  []string
}

// turns is the plan that inside reads from a file.
type turns struct {
	Rounds   int
	Commands []turn
}

// inside is the job's command on rank 0: it runs each command of the plan once per round and prints how long it took.
func inside(ctx context.Context, plan string, out io.Writer) error {
	text, err := os.ReadFile(plan)
	if err != nil {
		return err
	}
	var all turns
	if err := json.Unmarshal(text, &all); err != nil {
		return err
	}
	// A pipe without data or EOF: mpiexec.hydra 4.0.2 dies of SIGPIPE when it forwards EOF to a process that has
	// exited.
	stdin, open, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _, _ = stdin.Close(), open.Close() }()
	for round := range all.Rounds + 1 { // the first round only warms the caches
		for i := range all.Commands {
			c := all.Commands[(i+round)%len(all.Commands)]
			cmd := exec.CommandContext(ctx, c.Args[0], c.Args[1:]...)
			cmd.Env = append(os.Environ(), c.Env...)
			cmd.Stdin = stdin
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			begin := time.Now()
			err := cmd.Run()
			took := time.Since(begin)
			if err != nil {
				return fmt.Errorf("%s: %v: %w: %s", c.Name, c.Args, err, stderr.String())
			}
			if round > 0 {
				if _, err := fmt.Fprintf(out, "%s\t%g\n", c.Name, milliseconds(took)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// network is a job on many hosts of one machine.
type network struct {
	lab      *lab.Lab
	machines []*lab.Machine
	dir      string // each container sees it as /run/bench
	paiinit  string
}

func newNetwork(binary string, hosts int) (n *network, err error) {
	if missing := lab.Missing(); len(missing) > 0 {
		return nil, errors.New(strings.Join(missing, "\n"))
	}
	n = &network{}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	if n.paiinit, err = filepath.Abs(binary); err != nil {
		return n, err
	}
	if n.dir, err = os.MkdirTemp("", "paiinit-bench-"); err != nil {
		return n, err
	}
	if n.lab, err = lab.New(lab.Config{}); err != nil {
		return n, err
	}
	for i := range hosts {
		m, err := n.lab.Machine(fmt.Sprintf("node-%d", i))
		if err != nil {
			return n, err
		}
		n.machines = append(n.machines, m)
	}
	return n, nil
}

func (n *network) close() error {
	var err error
	if n.lab != nil {
		err = n.lab.Close()
	}
	return errors.Join(err, os.RemoveAll(n.dir))
}

// write creates a file under /run/bench.
func (n *network) write(name, text string, mode os.FileMode) error {
	return os.WriteFile(filepath.Join(n.dir, name), []byte(text), mode)
}

// start starts a container on a machine.
func (n *network) start(
	machine int, name string, env []string, binds map[string]string, args ...string,
) (*lab.Container, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	all := map[string]string{"/run/bench": n.dir, "/run/bin/paiinit": n.paiinit, "/run/bin/bench": self}
	maps.Copy(all, binds)
	hosts := make(map[string]netip.Addr)
	for _, m := range n.machines {
		hosts[m.Name] = m.Addr
	}
	return n.machines[machine].Start(lab.Program{
		Name: name, Args: args, Env: append([]string{benchPath, "HOME=/root", "USER=root"}, env...), Dir: "/",
		Tmpfs: []string{"/root"}, Binds: all, Hosts: hosts,
	})
}

// measure starts the job, has rank 0 run the commands, and returns how long each took.
func (n *network) measure(ctx context.Context, rounds int, commands []turn) (map[string]series, error) {
	plan, err := json.Marshal(turns{rounds, commands})
	if err != nil {
		return nil, err
	}
	if err := n.write("plan.json", string(plan), 0o644); err != nil {
		return nil, err
	}
	var peers []string
	for _, m := range n.machines {
		peers = append(peers, m.Addr.String())
	}
	var all []*lab.Container
	for i := len(n.machines) - 1; i >= 0; i-- {
		env := []string{"PAIINIT_SECRET=" + jobSecret, "PAIINIT_PEERS=" + strings.Join(peers, ","),
			"PAIINIT_RANK=" + strconv.Itoa(i), "PAIINIT_SLOTS=1", "PAIINIT_LOG_LEVEL=error"}
		args := []string{"/run/bin/paiinit", "--"}
		binds := make(map[string]string)
		if i == 0 {
			args = append(args, "/run/bin/bench", "inside", "/run/bench/plan.json")
			for _, c := range all {
				binds["/run/ns/"+c.Machine.Name] = fmt.Sprintf("/proc/%d/ns", c.PID())
			}
		}
		c, err := n.start(i, "", env, binds, args...)
		if err != nil {
			return nil, err
		}
		all = append([]*lab.Container{c}, all...)
	}
	status, err := all[0].Wait(ctx)
	if err == nil && status != 0 {
		err = fmt.Errorf("the job ended with status %d: %s", status, all[0].Output())
	}
	for _, c := range all[1:] { // the next job needs their ports
		if err == nil {
			_, err = c.Wait(ctx)
		}
	}
	if err != nil {
		return nil, err
	}
	took := make(map[string]series)
	for _, line := range all[0].Lines() {
		name, value, ok := strings.Cut(line.Text, "\t")
		ms, err := strconv.ParseFloat(value, 64)
		if ok && err == nil && !line.Stderr {
			took[name] = append(took[name], ms)
		}
	}
	return took, nil
}

// floor is the source of the fastest possible remote shell, in C.
//
//go:embed floor/floor.c
var floor string

// otherShells builds /run/bench/floor and /run/bench/plain, and starts plain's server on all hosts but the first.
func (n *network) otherShells(ctx context.Context) error {
	if err := compile(ctx, floor, filepath.Join(n.dir, "floor")); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-ldflags", "-s -w", "-o", filepath.Join(n.dir, "plain"),
		"./integration/bench/plain")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w: %s", cmd, err, out)
	}
	for i := 1; i < len(n.machines); i++ {
		if _, err := n.start(i, "plain", nil, nil, "/run/bench/plain", "serve"); err != nil {
			return err
		}
	}
	return nil
}

// compile builds a static program from C source.
func compile(ctx context.Context, source, to string) error {
	cmd := exec.CommandContext(ctx, "gcc", "-O2", "-Wall", "-static", "-o", to, "-xc", "-")
	cmd.Stdin = strings.NewReader(source)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w: %s; on Debian or Ubuntu: apt-get install gcc libc6-dev", cmd, err, out)
	}
	return nil
}

// measureShell compares paiinit's remote shell with others: each runs `true` on another host.
func measureShell(ctx context.Context, binary string, rounds int) (r report, err error) {
	n, err := newNetwork(binary, 2)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	if err := n.otherServers(ctx); err != nil {
		return r, err
	}
	address := n.machines[1].Addr.String()
	took, err := n.measure(ctx, 5*rounds, []turn{
		{Name: "paiinit", Args: []string{"/run/bin/paiinit", "rsh", "node-1", "true"}},
		{Name: "OpenSSH", Args: []string{"ssh", "-F", "/run/bench/ssh_config", address, "true"}},
		{Name: "dropbear", Args: []string{"dbclient", "-y", "-y", "-i", "/run/bench/dropbear_key", "-p", "2223",
			"root@" + address, "true"}},
		{Name: "setns", Args: []string{"nsenter", "--net=/run/ns/node-1/net", "--uts=/run/ns/node-1/uts",
			"sh", "-c", "true"}},
		{Name: "local", Args: []string{"sh", "-c", "true"}},
		{Name: "version", Args: []string{"/run/bin/paiinit", "rsh", "-V"}},
	})
	if err != nil {
		return r, err
	}
	r = report{
		name:  "rsh",
		title: "The remote shell",
		plot:  "Time of a command on another host, with paiinit, OpenSSH, dropbear and without a network",
		intro: []string{
			fmt.Sprintf("Start to end of a remote shell that runs `true` on another host; the hosts are network "+
				"namespaces of one machine, %d rounds by turns on %d CPUs, Linux %s, %s. "+nineOfTen+
				" OpenSSH and dropbear log in with a key and use their default algorithms. `setns` is the floor: "+
				"nsenter(1) with the same command. `sh -c true` runs on this host; the last column only starts the "+
				"program.",
				5*rounds, runtime.NumCPU(), release(), runtime.Version()),
		},
		columns: []string{"paiinit rsh", "OpenSSH", "dropbear", "setns", "sh -c true", "paiinit rsh -V"},
	}
	row, ratio := []string{"one command, ms"}, []string{"times the floor"}
	for _, name := range []string{"paiinit", "OpenSSH", "dropbear", "setns", "local", "version"} {
		row = append(row, took[name].cell("%.2f"))
		ratio = append(ratio, fmt.Sprintf("%.1f", took[name].median()/took["setns"].median()))
	}
	r.rows = [][]string{row, ratio}
	return r, nil
}

// otherServers generates keys for sshd and dropbear, and starts both on the second machine.
func (n *network) otherServers(ctx context.Context) error {
	for _, args := range [][]string{
		{"ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", n.dir + "/key"},
		{"ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", n.dir + "/host"},
		{"dropbearkey", "-t", "ed25519", "-f", n.dir + "/dropbear_key"},
		{"dropbearkey", "-t", "ed25519", "-f", n.dir + "/dropbear_host"},
	} {
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w: %s; on Debian or Ubuntu: apt-get install openssh-server dropbear-bin",
				cmd, err, out)
		}
	}
	own, err := os.ReadFile(n.dir + "/key.pub")
	if err != nil {
		return err
	}
	other, err := exec.CommandContext(ctx, "dropbearkey", "-y", "-f", n.dir+"/dropbear_key").Output()
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(other)) {
		if strings.HasPrefix(line, "ssh-") {
			own = append(own, line...)
		}
	}
	for name, text := range map[string]string{
		"authorized_keys": string(own),
		"sshd_config": "Port 2222\nHostKey /run/bench/host\nAuthorizedKeysFile /run/bench/authorized_keys\n" +
			"StrictModes no\nUsePAM no\nPermitRootLogin yes\nPidFile none\n",
		"ssh_config": "Port 2222\nUser root\nIdentityFile /run/bench/key\nStrictHostKeyChecking no\n" +
			"UserKnownHostsFile /dev/null\nLogLevel ERROR\n",
	} {
		if err := n.write(name, text, 0o600); err != nil {
			return err
		}
	}
	for name, script := range map[string]string{
		"sshd": "mkdir -p /run/sshd; exec /usr/sbin/sshd -D -e -f /run/bench/sshd_config",
		"dropbear": "chmod 700 /root; mkdir -m 700 /root/.ssh; cp /run/bench/authorized_keys /root/.ssh; " +
			"exec dropbear -F -E -p 2223 -r /run/bench/dropbear_host",
	} {
		if _, err := n.start(1, name, nil, nil, "sh", "-c", script); err != nil {
			return err
		}
	}
	return nil
}

// measureLaunchers compares launchers that use paiinit's remote shell with the same launchers over floor and plain.
func measureLaunchers(ctx context.Context, binary string, rounds int) (r report, err error) {
	n, err := newNetwork(binary, launchedHosts)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	if err := n.otherShells(ctx); err != nil {
		return r, err
	}
	hosts, most := strconv.Itoa(launchedHosts), max(rounds/2, 1)
	launchers := []struct {
		name, title string
		args        []string
		shell       string // the variable that names the remote shell
	}{
		{"mpirun", "Open MPI's `mpirun hostname`",
			[]string{"mpirun.openmpi", "-np", hosts, "hostname"}, "OMPI_MCA_plm_rsh_agent"},
		{"hydra", "MPICH's `mpiexec.hydra hostname`",
			[]string{"mpiexec.hydra", "-n", hosts, "hostname"}, "HYDRA_LAUNCHER_EXEC"},
	}
	others := []string{"floor", "plain"}
	var commands []turn
	for _, l := range launchers {
		commands = append(commands, turn{Name: l.name, Args: l.args})
		for _, o := range others {
			commands = append(commands,
				turn{Name: l.name + " " + o, Args: l.args, Env: []string{l.shell + "=/run/bench/" + o}})
		}
	}
	took, err := n.measure(ctx, most, commands)
	if err != nil {
		return r, err
	}
	r = report{
		name:  "launchers",
		title: fmt.Sprintf("Launchers on %d hosts", launchedHosts),
		intro: []string{
			fmt.Sprintf("The command of a job is a launcher that starts `hostname` on %d hosts, one process each. The "+
				"hosts are namespaces of one machine and share its %d CPUs, so the time is the sum of the work of all "+
				"hosts. %d rounds by turns, Linux %s, %s. "+nineOfTen,
				launchedHosts, runtime.NumCPU(), most, release(), runtime.Version()),
			"`setns` is the floor: a remote shell of a few lines of C that enters the other host's namespaces and " +
				"executes the same command there, without network and server (integration/bench/floor/floor.c). " +
				"`bare TCP` is the least that a network allows: a Go program and its server without encryption, " +
				"login, terminals and signals (integration/bench/plain). The last two columns divide the time of " +
				"`paiinit rsh` by theirs.",
		},
		columns: []string{"paiinit rsh", "setns", "bare TCP", "times setns", "times bare TCP"},
	}
	for _, l := range launchers {
		ours := took[l.name]
		row := []string{l.title + ", s", ours.seconds().cell("%.3f")}
		for _, o := range others {
			row = append(row, took[l.name+" "+o].seconds().cell("%.3f"))
		}
		for _, o := range others {
			row = append(row, fmt.Sprintf("%.2f", ours.median()/took[l.name+" "+o].median()))
		}
		r.rows = append(r.rows, row)
	}
	return r, nil
}

// seconds converts milliseconds to seconds.
func (s series) seconds() series {
	out := make(series, len(s))
	for i, ms := range s {
		out[i] = ms / 1000
	}
	return out
}
