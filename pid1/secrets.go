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
// /proc/PID/environ, and from the Go runtime's copy of it, the strings of os.Environ. It does so in place, as
// setproctitle(3) does: starting the program again with another environment would do as well, but takes a second
// start-up, and loses the signals that come in between.
//
// What was taken from os.Environ before reads as zeros afterwards.
func erase(args, environ, names []string) error {
	for _, entry := range environ {
		for _, name := range names {
			if value, ok := cutPrefix(entry, name+"="); ok {
				// The runtime has allocated each entry (goenvs_unix, runtime/runtime1.go): the memory can be written.
				clear(bytesOf(value))
			}
		}
	}
	block, err := environBlock(args)
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

	// Without /proc there is nothing to check, and no other process can look.
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

// auxiliaryVector is the runtime's copy of the pairs that the kernel has put above the environment.
// golang.org/x/sys/unix has it as Auxv, but that package would be initialised before the agent starts.
//
//go:linkname auxiliaryVector runtime.getAuxv
func auxiliaryVector() []uintptr

// environBlock returns the memory of the environment's strings. At the upper end of the stack the kernel has put, one
// after the other and each with a zero byte, the strings of the arguments, those of the environment, and the file name
// of the program (fs/binfmt_elf.c, fs/exec.c). The runtime does not copy the strings of os.Args; the place of the file
// name is in the auxiliary vector, and so is that of sixteen random bytes, which are on the stack below all strings.
// What does not lie between the two was not put there by the kernel, and is not touched.
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
