package pid1

import (
	"errors"
	"os"
	"unsafe"
)

// Keys of the auxiliary vector (include/uapi/linux/auxvec.h).
const (
	atRandom = 25
	atExecfn = 31
)

// erase removes the named variables from the memory of this process: from the block that the kernel shows as
// /proc/PID/environ, and from the Go runtime's copy of it, the strings of os.Environ. It overwrites them in place, as
// setproctitle(3) does: executing the program again with another environment would cost a second start, and lose the
// signals that arrive meanwhile.
//
// Strings that were taken from os.Environ before read as zeros afterwards.
func erase(environ, names []string) error {
	for _, entry := range environ {
		for _, name := range names {
			if value, ok := cutPrefix(entry, name+"="); ok {
				// The runtime allocated each entry (goenvs_unix in runtime/runtime1.go), so the memory is writable.
				clear(bytesOf(value))
			}
		}
	}
	block, err := environBlock(os.Args)
	if err != nil {
		return err
	}
	for len(block) > 0 {
		entry, rest, _ := cut(block, 0)
		for _, name := range names {
			if hasPrefix(entry, name+"=") {
				clear(entry)
			}
		}
		block = rest
	}

	// Without /proc there is nothing to check, and other processes cannot see it.
	shown, err := os.ReadFile("/proc/self/environ")
	if err != nil {
		return nil
	}
	for _, name := range names {
		if contains(append([]byte{0}, shown...), "\x00"+name+"=") {
			return errors.New("erasing " + name + ": it is still in /proc/self/environ")
		}
	}
	return nil
}

// bytesOf returns the memory of a string.
func bytesOf(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }

// auxiliaryVector returns the runtime's copy of the pairs that the kernel puts above the environment. Auxv of
// golang.org/x/sys/unix returns the same, but that package would be initialised before the agent starts.
//
//go:linkname auxiliaryVector runtime.getAuxv
func auxiliaryVector() []uintptr

// environBlock returns the memory of the environment's strings. At the upper end of the stack the kernel puts the
// strings of the arguments, of the environment, and the program's file name, each with a zero byte (fs/binfmt_elf.c,
// fs/exec.c). The runtime does not copy the strings of os.Args. The auxiliary vector has the addresses of the file name
// and of sixteen random bytes, which lie below all strings. Memory outside of these two is not the kernel's block, and
// environBlock refuses it.
func environBlock(args []string) ([]byte, error) {
	auxv := auxiliaryVector()
	var random, filename uintptr
	for i := 0; i+1 < len(auxv); i += 2 {
		switch auxv[i] {
		case atRandom:
			random = auxv[i+1]
		case atExecfn:
			filename = auxv[i+1]
		}
	}
	if len(args) == 0 {
		return nil, errors.New("looking for the environment: no arguments")
	}
	offset := 0
	for _, arg := range args {
		offset += len(arg) + 1
	}
	base := unsafe.Pointer(unsafe.StringData(args[0]))
	if random == 0 || uintptr(base) < random || uintptr(base)+uintptr(offset) > filename {
		return nil, errors.New("looking for the environment: the arguments are not those of the process")
	}
	return unsafe.Slice((*byte)(unsafe.Add(base, offset)), filename-uintptr(base)-uintptr(offset)), nil
}
