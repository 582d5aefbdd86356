// Package inspect describes one container, and compares the containers of a job.
//
// [Facts] collects what should be equal on ranks that do the same work: image, driver, libraries, variables, limits.
// [Compare] finds what differs between ranks, and a [Board] holds the facts of all ranks on rank 0.
//
// The package reads files through an fs.FS and the environment that the caller passes. It starts no process and sends
// nothing over the network.
package inspect

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Fact is one property of a container.
type Fact struct{ Name, Value string }

// Source is what [Facts] reads. A function that is nil, or returns false, gives no fact.
type Source struct {
	Files   fs.FS // the root of the file system
	Environ []string

	Program string   // file of COMMAND; "" = this container has none
	Words   []string // COMMAND ARG...
	Dir     string   // working directory of COMMAND

	GPUs int // -1 = unknown

	SharedMemory func() (bytes uint64, ok bool) // size of /dev/shm
	LockedMemory func() (bytes uint64, ok bool) // soft limit; math.MaxUint64 = unlimited
	MTU          func() (bytes int, ok bool)    // of the interface to rank 0
	Kernel       func() (release string, ok bool)
}

const (
	maxVariables = 48        // of which facts are collected
	maxValue     = 80        // bytes; a longer value is compared by its hash
	maxHashed    = 256 << 10 // bytes of a file that are hashed, beside its size
	maxWords     = 8         // files among the arguments of COMMAND
	maxSearched  = 32        // directories of LD_LIBRARY_PATH
	maxCache     = 4 << 20   // bytes of ld.so.cache
)

// Facts returns the facts of a container, in the order in which people read them. Names are unique.
func Facts(s Source) []Fact {
	var facts []Fact
	add := func(name, value string) {
		if value != "" {
			facts = append(facts, Fact{name, clean(value)})
		}
	}
	add("image", s.image())
	for _, file := range s.commandFiles() {
		add(FilePrefix+file, s.fingerprint(file))
	}
	add(driverFact, s.driver())
	if s.GPUs >= 0 {
		add("GPUs", strconv.Itoa(s.GPUs))
	}
	for _, l := range s.libraries() {
		add(l.Name, l.Value)
	}
	for _, v := range s.variables() {
		add(v.Name, v.Value)
	}
	if n, ok := call(s.SharedMemory); ok {
		add("/dev/shm", size(n))
	}
	if n, ok := call(s.LockedMemory); ok {
		add("locked memory", size(n))
	}
	if n, ok := call(s.MTU); ok {
		add(mtuFact, strconv.Itoa(n))
	}
	if release, ok := call(s.Kernel); ok {
		add(kernelFact, release)
	}
	return facts
}

// FilePrefix begins the names of facts about a file of COMMAND. A rank without such a fact does not run this file.
const FilePrefix = "file "

const (
	driverFact = "NVIDIA driver"
	mtuFact    = "MTU to rank 0"
	kernelFact = "kernel"
)

func call[T any](f func() (T, bool)) (value T, ok bool) {
	if f == nil {
		return value, false
	}
	return f()
}

// clean makes a value printable on one line.
func clean(value string) string {
	value = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == 0xfffd {
			return '?'
		}
		return r
	}, value)
	if len(value) > maxValue {
		return fmt.Sprintf("%d bytes, sha256 %s", len(value), digest([]byte(value)))
	}
	return value
}

func digest(b []byte) string { return fmt.Sprintf("%.6x", sha256.Sum256(b)) }

// size formats a number of bytes. Different numbers have different texts.
func size(n uint64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for ; n > 0 && n%1024 == 0 && i < len(units)-1; i++ {
		n /= 1024
	}
	if n == ^uint64(0) {
		return "unlimited"
	}
	return fmt.Sprintf("%d %s", n, units[i])
}

// image returns the distribution's name and version.
func (s Source) image() string {
	for _, name := range []string{"etc/os-release", "usr/lib/os-release"} {
		text, err := readUpTo(s.Files, name, 16<<10)
		if err != nil {
			continue
		}
		found := make(map[string]string)
		for line := range strings.Lines(string(text)) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			found[key] = strings.Trim(value, `"'`)
		}
		pretty, version := found["PRETTY_NAME"], found["VERSION_ID"]
		if !strings.Contains(pretty, version) {
			pretty += " " + version
		}
		return strings.TrimSpace(pretty)
	}
	return ""
}

// driver returns the version of the NVIDIA kernel module.
func (s Source) driver() string {
	if text, err := readUpTo(s.Files, "sys/module/nvidia/version", 128); err == nil {
		return strings.TrimSpace(string(text))
	}
	text, err := readUpTo(s.Files, "proc/driver/nvidia/version", 4<<10)
	if err != nil {
		return ""
	}
	// NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.12  Wed Sep 20 09:35:17 UTC 2023
	line, _, _ := strings.Cut(string(text), "\n")
	for _, word := range strings.Fields(line) {
		if number, _, dotted := strings.Cut(word, "."); dotted && isNumber(number) {
			return word
		}
	}
	return ""
}

func isNumber(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return r < '0' || r > '9' })
}

// commandFiles returns the paths of COMMAND's program and of the scripts and settings that its arguments name.
func (s Source) commandFiles() (files []string) {
	add := func(file string) {
		if file != "" && !slices.Contains(files, file) && len(files) <= maxWords {
			files = append(files, file)
		}
	}
	add(s.Program)
	for _, arg := range s.Words[min(1, len(s.Words)):] {
		for _, word := range strings.FieldsFunc(arg, separates) {
			if _, value, ok := strings.Cut(word, "="); ok { // --config=FILE
				word = value
			}
			if !isScript(word) {
				continue
			}
			if !path.IsAbs(word) {
				word = path.Join(s.Dir, word)
			}
			add(path.Clean(word))
		}
	}
	return files
}

// separates reports whether a character ends a word in a line of a shell.
func separates(r rune) bool { return strings.ContainsRune(" \t\n;&|()<>\"'", r) }

// isScript reports whether a word of a command line names a script or a file of settings. Data may differ per rank.
func isScript(word string) bool {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-./+", r)
	}
	return slices.Contains([]string{".py", ".sh", ".json", ".yaml", ".yml", ".toml"}, path.Ext(word)) &&
		!strings.ContainsFunc(word, func(r rune) bool { return !plain(r) })
}

// fingerprint returns the size of a regular file and the hash of its beginning.
func (s Source) fingerprint(file string) string {
	name := strings.TrimPrefix(path.Clean(file), "/")
	info, err := fs.Stat(s.Files, name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "does not exist"
	case err != nil:
		return "cannot be read"
	case !info.Mode().IsRegular(): // opening a pipe could wait for ever
		return "is not a regular file"
	}
	b, err := readUpTo(s.Files, name, maxHashed)
	if err != nil {
		return fmt.Sprintf("%d bytes", info.Size()) // a program that may be executed, but not read
	}
	return fmt.Sprintf("%d bytes, sha256 %s", info.Size(), digest(b))
}

// readUpTo reads at most n bytes.
func readUpTo(files fs.FS, name string, n int64) ([]byte, error) {
	f, err := files.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, n))
}

// variables returns the settings of the communication libraries, sorted by name.
func (s Source) variables() (found []Fact) {
	for _, kv := range s.Environ {
		name, value, ok := strings.Cut(kv, "=")
		again := slices.ContainsFunc(found, func(f Fact) bool { return f.Name == name })
		if ok && isSetting(name) && len(name) <= maxValue && !again {
			if value == "" {
				value = "(empty)"
			}
			found = append(found, Fact{name, value})
		}
	}
	slices.SortFunc(found, func(a, b Fact) int { return strings.Compare(a.Name, b.Name) })
	return found[:min(len(found), maxVariables)]
}

// isSetting reports whether a variable sets a communication library. A variable that may hold a secret never does.
func isSetting(name string) bool {
	for _, secret := range []string{"PASSWORD", "PASSWD", "TOKEN", "KEY", "SECRET", "CREDENTIAL"} {
		if strings.Contains(strings.ToUpper(name), secret) {
			return false
		}
	}
	if name == "NCCL_HOSTID" || strings.HasPrefix(name, "OMPI_COMM_WORLD_") { // differ by design
		return false
	}
	return slices.ContainsFunc(settingPrefixes(), func(p string) bool { return strings.HasPrefix(name, p) })
}

func settingPrefixes() []string {
	return []string{
		"NCCL_", "RCCL_", "OMPI_", "PRTE_MCA_", "PMIX_MCA_", "UCX_", "UCC_", "FI_", "I_MPI_", "MPICH_",
		"MPIR_CVAR_", "MV2_", "GLOO_", "PSM2_", "PSM3_", "HCOLL_", "SHARP_",
	}
}
