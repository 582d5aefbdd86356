package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/paiinit/paiinit/integration/attack"
)

const (
	logins         = 500 // all at once
	attackedLogins = 10  // during each attack, one after another

	bulk     = 512 << 20 // bytes
	bulkText = "512 MiB"
	idleTime = 4 * time.Second // how long a server may take to give memory back
)

// ciphers lists the ciphers of both servers, each with its name in the table.
var ciphers = [][2]string{
	{"aes128-gcm@openssh.com", "aes128-gcm"},
	{"chacha20-poly1305@openssh.com", "chacha20-poly1305"},
}

// daemon is an SSH server in the comparison.
type daemon struct {
	name    string
	command func(port int) *exec.Cmd
	bulk    bool // measure its throughput
	abuse   bool // attack it
	waits   bool // it waits for another rank; only attack it
	probed  bool // it answers probes; attack it with requests

	refused, login, memory series
	down, up               [2]series         // MB/s, by cipher
	during                 map[string]series // the slowest login during each attack, ms
	attacked               series            // memory during the attacks, MB
}

// sshBench is the directory with all keys and files.
type sshBench struct {
	dir    string
	signer ssh.Signer
}

// measureSSHD compares paiinit's SSH server with OpenSSH's: many logins at once, memory, and throughput for OpenSSH's
// client.
func measureSSHD(ctx context.Context, binary string, rounds int) (report, error) {
	if os.Geteuid() != 0 {
		return report{}, errors.New("OpenSSH's sshd needs root")
	}
	for _, program := range []string{"ssh", "/usr/sbin/sshd"} {
		if _, err := exec.LookPath(program); err != nil {
			return report{}, fmt.Errorf("%w; on Debian or Ubuntu: apt-get install openssh-client openssh-server", err)
		}
	}
	binary, err := filepath.Abs(binary)
	if err != nil {
		return report{}, err
	}
	b := sshBench{}
	if b.dir, err = os.MkdirTemp("", "paiinit-bench-"); err != nil {
		return report{}, err
	}
	defer func() { _ = os.RemoveAll(b.dir) }()
	if err := b.prepare(); err != nil {
		return report{}, err
	}
	openSSH := func(maxStartups string) func(int) *exec.Cmd {
		return func(port int) *exec.Cmd {
			cmd := exec.Command("/usr/sbin/sshd", "-D", "-e", "-f", "/dev/null",
				"-p", strconv.Itoa(port), "-h", b.path("key"))
			for _, option := range []string{"ListenAddress=127.0.0.1", "PidFile=none", "UsePAM=no", "StrictModes=no",
				"PrintMotd=no", "LogLevel=ERROR", "AuthorizedKeysFile=" + b.path("authorized"),
				"MaxStartups=" + maxStartups} {
				cmd.Args = append(cmd.Args, "-o", option)
			}
			return cmd
		}
	}
	waiting := func(state string) func(int) *exec.Cmd {
		return func(port int) *exec.Cmd {
			cmd := exec.Command(binary, "--rank=0", fmt.Sprintf("--peers=127.0.0.1:%d,127.0.0.1:1", port),
				"--timeout=1h", "--authorized-keys="+b.path("authorized"), "--state-dir="+b.path(state),
				"--log-level=error", "true")
			cmd.Env = append(os.Environ(), "PAIINIT_SECRET="+jobSecret)
			return cmd
		}
	}
	fewFiles := func(port int) *exec.Cmd {
		cmd := waiting("few")(port)
		limited := []string{"sh", "-c", `ulimit -n 1024 && exec "$@"`, "sh", cmd.Path}
		cmd.Path, cmd.Args = "/bin/sh", append(limited, cmd.Args[1:]...)
		return cmd
	}
	alone := func(flags ...string) func(int) *exec.Cmd {
		return func(port int) *exec.Cmd {
			args := append(flags, "--size=1", "--port="+strconv.Itoa(port), "--authorized-keys="+b.path("authorized"),
				"--state-dir="+b.path("state"), "--log-level=error", "--", "sleep", "1000")
			return exec.Command(binary, args...)
		}
	}
	daemons := []*daemon{
		{name: "paiinit", bulk: true, abuse: true, during: make(map[string]series), command: alone()},
		{name: "paiinit --http", abuse: true, probed: true, during: make(map[string]series), command: alone("--http")},
		{name: "paiinit, waiting for a rank", waits: true, command: waiting("waiting"),
			during: make(map[string]series)},
		{name: "the same with 1,024 files", waits: true, command: fewFiles, during: make(map[string]series)},
		{name: "OpenSSH", bulk: true, command: openSSH("10:30:100")},
		{name: "OpenSSH, MaxStartups 10000", command: openSSH("10000")},
	}
	// OpenSSH's sshd calls chroot(2) with this directory before authentication.
	if err := os.MkdirAll("/run/sshd", 0o755); err != nil {
		return report{}, err
	}
	slow := max(1, rounds/4) // a round takes almost a minute
	for round := range slow {
		for i := range daemons {
			d := daemons[(i+round)%len(daemons)]
			if err := b.measure(ctx, d); err != nil {
				return report{}, fmt.Errorf("%s: %w", d.name, err)
			}
		}
	}
	return sshdReport(daemons, slow), nil
}

func (b *sshBench) path(name string) string { return filepath.Join(b.dir, name) }

// prepare generates one key, which serves as the user's key and as OpenSSH's host key.
func (b *sshBench) prepare() error {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	if b.signer, err = ssh.NewSignerFromKey(private); err != nil {
		return err
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(b.path("key"), pem.EncodeToMemory(block), 0o600),
		os.WriteFile(b.path("authorized"), ssh.MarshalAuthorizedKey(b.signer.PublicKey()), 0o600))
}

// measure starts the server and adds one value to each series.
func (b *sshBench) measure(ctx context.Context, d *daemon) (err error) {
	port, err := unusedPort()
	if err != nil {
		return err
	}
	cmd := d.command(port)
	var messages bytes.Buffer
	cmd.Stderr = &messages
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait() // reports the SIGTERM
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, messages.String())
		}
	}()
	addr := fmt.Sprintf("127.0.0.1:%d", port)
	if err := answers(ctx, addr); err != nil {
		return err
	}
	if !d.waits {
		if err := b.storm(ctx, d, cmd.Process.Pid, addr); err != nil {
			return err
		}
	}
	if d.bulk {
		if err := b.bulk(ctx, d, port); err != nil {
			return err
		}
	}
	if !d.abuse && !d.waits {
		return nil
	}
	for _, a := range attack.All() {
		if a.Gossip != d.waits || a.HTTP != d.probed {
			continue
		}
		if err := b.attack(ctx, d, a.Name, cmd.Process.Pid, addr, a); err != nil {
			return err
		}
	}
	if d.waits {
		return b.attack(ctx, d, allAtOnce, cmd.Process.Pid, addr, attack.All()...)
	}
	return nil
}

// bulk measures the throughput with each cipher, in both directions.
func (b *sshBench) bulk(ctx context.Context, d *daemon, port int) error {
	for i, cipher := range ciphers {
		down, err := b.move(ctx, port, cipher[0], fmt.Sprintf("head -c %d /dev/zero", bulk), false)
		if err != nil {
			return err
		}
		up, err := b.move(ctx, port, cipher[0], "cat >/dev/null", true)
		if err != nil {
			return err
		}
		d.down[i], d.up[i] = append(d.down[i], down), append(d.up[i], up)
	}
	return nil
}

func unusedPort() (int, error) {
	var err error
	for range 10 {
		// Choose below ip_local_port_range: the kernel hands out thousands of those ports before the server listens.
		var ln net.Listener
		if ln, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 20000+mathrand.N(10000))); err == nil {
			return ln.Addr().(*net.TCPAddr).Port, ln.Close()
		}
	}
	return 0, err
}

// answers waits until a server listens on addr.
func answers(ctx context.Context, addr string) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for range 1000 {
		nc, err := net.Dial("tcp", addr)
		if err == nil {
			return nc.Close()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
	return fmt.Errorf("nothing listens on %s", addr)
}

// storm logs in many times at once.
func (b *sshBench) storm(ctx context.Context, d *daemon, pid int, addr string) error {
	config := b.client()
	before, err := memoryOf(pid)
	if err != nil {
		return err
	}
	clients := make([]*ssh.Client, logins)
	begin := time.Now()
	var group sync.WaitGroup
	for i := range clients {
		group.Go(func() { clients[i], _ = ssh.Dial("tcp", addr, config) }) // nil counts as refused
	}
	group.Wait()
	d.login = append(d.login, milliseconds(time.Since(begin)))
	up := 0
	for _, c := range clients {
		if c != nil {
			up++
		}
	}
	d.refused = append(d.refused, float64(logins-up))
	// The server may give memory back only a while after the logins.
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(idleTime):
	}
	after, err := memoryOf(pid)
	if err != nil {
		return err
	}
	d.memory = append(d.memory, (after-before)/float64(max(1, up)))
	for _, c := range clients {
		if c != nil {
			_ = c.Close()
		}
	}
	return nil
}

const allAtOnce = "all at once"

// attack measures logins, one after another, during the attacks.
func (b *sshBench) attack(
	ctx context.Context, d *daemon, name string, pid int, addr string, attacks ...attack.Attack,
) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("during the attack %q: %w", name, err)
		}
	}()
	for _, a := range attacks {
		at, startErr := a.Start(ctx, addr)
		if startErr != nil {
			return startErr
		}
		defer func() { err = errors.Join(err, at.Stop()) }()
	}
	worst := 0.0
	for range attackedLogins {
		begin := time.Now()
		client, err := ssh.Dial("tcp", addr, b.client())
		if err != nil {
			return err
		}
		session, err := client.NewSession()
		if err == nil {
			err = session.Run("true")
		}
		worst = max(worst, milliseconds(time.Since(begin)))
		if err := errors.Join(err, client.Close()); err != nil {
			return err
		}
		kB, err := sumOf(pid)
		if err != nil {
			return err
		}
		d.attacked = append(d.attacked, kB/1000)
	}
	d.during[name] = append(d.during[name], worst)
	return nil
}

func (b *sshBench) client() *ssh.ClientConfig {
	return &ssh.ClientConfig{
		User: "root", Auth: []ssh.AuthMethod{ssh.PublicKeys(b.signer)}, HostKeyCallback: ssh.InsecureIgnoreHostKey(),
	}
}

// memoryOf waits until a process's memory is stable and returns sumOf.
func memoryOf(pid int) (float64, error) {
	if err := settle(pid); err != nil {
		return 0, err
	}
	return sumOf(pid)
}

// sumOf returns the proportional set size, in kB, of a process and all its descendants.
func sumOf(pid int) (float64, error) {
	sum := 0.0
	pids := []int{pid}
	for len(pids) > 0 {
		kB, err := pss(pids[0])
		if err != nil {
			return 0, err
		}
		sum += kB
		lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pids[0]))
		if err != nil {
			return 0, err
		}
		pids = pids[1:]
		for _, list := range lists {
			text, _ := os.ReadFile(list) // fails if the thread has ended
			for _, child := range strings.Fields(string(text)) {
				n, err := strconv.Atoi(child)
				if err != nil {
					return 0, err
				}
				pids = append(pids, n)
			}
		}
	}
	return sum, nil
}

// move transfers bulk bytes with OpenSSH's client and returns MB per second.
func (b *sshBench) move(ctx context.Context, port int, cipher, command string, up bool) (float64, error) {
	cmd := exec.CommandContext(ctx, "ssh", "-F", "none", "-i", b.path("key"), "-p", strconv.Itoa(port), "-c", cipher,
		"-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR", "-o", "StrictHostKeyChecking=no",
		"-o", "UserKnownHostsFile=/dev/null", "root@127.0.0.1", command)
	var messages bytes.Buffer
	cmd.Stderr = &messages
	begin := time.Now()
	if up { // a pipe between two processes, as a shell makes it
		zero := exec.CommandContext(ctx, "head", "-c", strconv.Itoa(bulk), "/dev/zero")
		r, err := zero.StdoutPipe()
		if err != nil {
			return 0, err
		}
		cmd.Stdin = r.(*os.File)
		if err := zero.Start(); err != nil {
			return 0, err
		}
		err = cmd.Run()
		if err := errors.Join(err, zero.Wait()); err != nil {
			return 0, fmt.Errorf("%v: %w: %s", cmd, err, messages.String())
		}
		return bulk / 1e6 / time.Since(begin).Seconds(), nil
	}
	r, w, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	cmd.Stdout = w
	if err := cmd.Start(); err != nil {
		return 0, errors.Join(err, r.Close(), w.Close())
	}
	_ = w.Close()
	n, err := io.Copy(io.Discard, r)
	_ = r.Close()
	if err := errors.Join(err, cmd.Wait()); err != nil {
		return 0, fmt.Errorf("%v: %w: %s", cmd, err, messages.String())
	}
	if n != bulk {
		return 0, fmt.Errorf("%v: received %d of %d bytes", cmd, n, bulk)
	}
	return bulk / 1e6 / time.Since(begin).Seconds(), nil
}

// largest returns a series of only the largest value.
func (s series) largest() series {
	if len(s) == 0 {
		return nil
	}
	return series{slices.Max(s)}
}

func sshdReport(daemons []*daemon, rounds int) report {
	r := report{
		name:  "sshd",
		title: "The SSH server",
		intro: []string{
			fmt.Sprintf("Logins by x/crypto/ssh from one process, throughput by OpenSSH's client, over loopback; "+
				"%d rounds by turns on %d CPUs, Linux %s, %s. "+nineOfTen+" Memory per connection is the growth of "+
				"the PSS of all processes of the server, %v after the last login.",
				rounds, runtime.NumCPU(), release(), runtime.Version(), idleTime),
			"chacha20-poly1305 is slower than with OpenSSH on amd64, because golang.org/x/crypto implements " +
				"ChaCha20 in Go there, not in assembly: perf(1) finds 39 to 44 % of the server's CPU time in its " +
				"xorKeyStreamBlocksGeneric. paiinit's own client and the ssh_config that it writes prefer aes128-gcm.",
			"The attacks come from other addresses of the same machine and share its CPUs: 1,000 connections that " +
				"send nothing (silent) or only the first line (half-open), 300 that send a byte now and then " +
				"(slow), 30 that keep reconnecting with garbage, oversized input or wrong keys, and 10,000 at once " +
				"(integration/attack). With --http 100 connections send 1,000 probes a second, 1,000 send half a " +
				"request, and 300 a byte now and then. A container that waits for a rank also reads gossip. The time " +
				"of a login ends with its command.",
		},
	}
	type row struct {
		name   string
		format string
		of     func(*daemon) series
	}
	rows := []row{
		{fmt.Sprintf("%d logins at once: refused", logins), "%.0f", func(d *daemon) series { return d.refused }},
		{"until the last login succeeded, ms", "%.0f", func(d *daemon) series { return d.login }},
		{"memory of an idle connection, kB", "%.0f", func(d *daemon) series { return d.memory }},
	}
	for i, cipher := range ciphers {
		rows = append(rows, []row{
			{bulkText + " from the server, " + cipher[1] + ", MB/s", "%.0f",
				func(d *daemon) series { return d.down[i] }},
			{bulkText + " to the server, " + cipher[1] + ", MB/s", "%.0f",
				func(d *daemon) series { return d.up[i] }},
		}...)
	}
	names := []string{allAtOnce}
	for _, a := range slices.Backward(attack.All()) {
		names = append(names, a.Name)
	}
	for _, name := range slices.Backward(names) {
		rows = append(rows, row{fmt.Sprintf("slowest of %d logins during the attack: %s, ms", attackedLogins, name),
			"%.0f", func(d *daemon) series { return d.during[name] }})
	}
	rows = append(rows, row{"most memory during the attacks, MB", "%.0f",
		func(d *daemon) series { return d.attacked.largest() }})
	for _, d := range daemons {
		r.columns = append(r.columns, d.name)
	}
	for _, row := range rows {
		cells := []string{row.name}
		for _, d := range daemons {
			cells = append(cells, row.of(d).cell(row.format))
		}
		r.rows = append(r.rows, cells)
	}
	return r
}
