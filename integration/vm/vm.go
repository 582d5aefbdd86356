package vm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"sync"

	"github.com/paiinit/paiinit/integration/vm/wire"
)

// Config describes a machine.
type Config struct {
	Kernel  *Kernel
	Modules []string          // kernel modules to load in this order, each after its dependencies
	Guest   string            // path of the static program of package guest
	Files   map[string]string // paths of programs and files on this host, by path in the machine
	Dir     string            // empty directory for the files of this machine
	Link    string            // path of the Unix socket that connects the eth0 of two machines; "" = no eth0
	Listen  bool              // listen on Link; set it for the machine that starts first
	Address byte              // last byte of the MAC address of eth0
}

// Machine is a running virtual machine.
type Machine struct {
	console safeBuffer
	done    chan struct{}
	err     error
	kill    context.CancelFunc
	line    net.Conn
	in      *json.Decoder
	out     *json.Encoder
}

// Boot starts a machine and returns when its guest is ready for commands.
func Boot(ctx context.Context, c Config) (*Machine, error) {
	m := &Machine{done: make(chan struct{})}
	image := image{files: map[string]string{"init": c.Guest}}
	modules, err := c.Kernel.order(c.Modules)
	if err != nil {
		return nil, err
	}
	for i, file := range modules {
		image.files[fmt.Sprintf("modules/%03d-%s", i, filepath.Base(file))] = file
	}
	for name, from := range c.Files {
		if err := image.add(name, from); err != nil {
			return nil, err
		}
	}
	initrd, control := filepath.Join(c.Dir, "initrd"), filepath.Join(c.Dir, "control")
	if err := image.write(initrd); err != nil {
		return nil, err
	}
	listener, err := net.Listen("unix", control)
	if err != nil {
		return nil, fmt.Errorf("vm: %w", err)
	}
	defer func() { _ = listener.Close() }()

	// no_timer_check: the kernel counts the interrupts of its timer while it boots, and panics if QEMU, on a busy host,
	// has lost most of them (timer_irq_works in arch/x86/kernel/apic/io_apic.c). Guests of KVM do not count.
	args := []string{
		"-machine", "pc", "-accel", "tcg", "-cpu", "max", "-smp", "1", "-m", "512",
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-serial", "stdio", "-chardev", "socket,id=control,path=" + control, "-serial", "chardev:control",
		"-kernel", c.Kernel.Image, "-initrd", initrd,
		"-append", "console=ttyS0 panic=-1 quiet loglevel=4 tsc=unstable no_timer_check nokaslr mitigations=off " +
			"rdinit=/init",
	}
	if c.Link != "" {
		server := map[bool]string{true: "on", false: "off"}[c.Listen]
		args = append(args, "-netdev", "stream,id=net,addr.type=unix,addr.path="+c.Link+",server="+server,
			"-device", fmt.Sprintf("virtio-net-pci,netdev=net,romfile=,mac=52:54:00:00:00:%02x", c.Address))
	}
	running, kill := context.WithCancel(context.Background())
	m.kill = kill
	cmd := exec.CommandContext(running, "qemu-system-x86_64", args...)
	cmd.Stdout, cmd.Stderr = &m.console, &m.console
	if err := cmd.Start(); err != nil {
		kill()
		return nil, fmt.Errorf("vm: starting qemu: %w", err)
	}
	go func() {
		m.err = cmd.Wait()
		close(m.done)
		_ = listener.Close()
	}()
	if m.line, err = listener.Accept(); err != nil {
		m.Close()
		return nil, fmt.Errorf("vm: qemu ended: %w\n%s", m.err, m.Console())
	}
	m.in, m.out = json.NewDecoder(m.line), json.NewEncoder(m.line)
	var ready wire.Result
	if err := m.read(ctx, &ready); err != nil {
		m.Close()
		return nil, fmt.Errorf("vm: booting: %w\n%s", err, m.Console())
	}
	return m, nil
}

// read waits for the next answer of the guest.
func (m *Machine) read(ctx context.Context, r *wire.Result) error {
	stop := context.AfterFunc(ctx, func() { _ = m.line.Close() })
	defer stop()
	if err := m.in.Decode(r); err != nil {
		return errors.Join(err, ctx.Err())
	}
	return nil
}

// Run runs a command to its end. A failed command is not an error.
func (m *Machine) Run(ctx context.Context, c wire.Command) (wire.Result, error) {
	if c.Seconds == 0 {
		c.Seconds = 60
	}
	var r wire.Result
	err := m.out.Encode(c)
	if err == nil {
		err = m.read(ctx, &r)
	}
	if err != nil {
		return r, fmt.Errorf("vm: running %q: %w\n%s", c.Args, err, m.Console())
	}
	return r, nil
}

// Console returns the output of the kernel and the guest on the first serial line.
func (m *Machine) Console() string { return m.console.String() }

// Close powers the machine off.
func (m *Machine) Close() {
	m.kill()
	<-m.done
	if m.line != nil {
		_ = m.line.Close()
	}
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
