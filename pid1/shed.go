package pid1

import (
	"os"
	"strconv"
	"syscall"
)

// shed releases the pages of the program's file that only the start needed: 3 MB of 5 in the first process, 6 MB of 12
// in the agent. The page cache still has them if one is needed again. It releases only mappings that were never written
// to, and none if /proc/self/smaps is not readable.
func shed() {
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return
	}
	for _, m := range cleanFiles(smaps) {
		// Only advice: a failure is harmless.
		_, _, _ = syscall.RawSyscall(syscall.SYS_MADVISE, m.begin, m.end-m.begin, syscall.MADV_DONTNEED)
	}
}

// mapping is a range of addresses.
type mapping struct{ begin, end uintptr }

// cleanFiles finds in /proc/PID/smaps (proc_pid_smaps(5)) the mappings of files that are read-only and have no private
// page, as a relocated table would have. It skips what it does not understand.
func cleanFiles(smaps []byte) []mapping {
	found := make([]mapping, 0, 8)
	var m mapping
	for len(smaps) > 0 {
		var line []byte
		line, smaps, _ = cut(smaps, '\n')
		addresses, rest, _ := cut(line, ' ')
		first, last, isMapping := cut(addresses, '-')
		if isMapping {
			m = mapping{}
			begin, err1 := strconv.ParseUint(string(first), 16, 64)
			end, err2 := strconv.ParseUint(string(last), 16, 64)
			// "r-xp 00000000 fe:00 4711   /sbin/paiinit"
			readOnly := len(rest) > 1 && rest[1] == '-'
			if err1 == nil && err2 == nil && begin < end && readOnly && contains(rest, " /") {
				m = mapping{uintptr(begin), uintptr(end)}
			}
		} else if m.end != 0 && string(addresses) == "Anonymous:" && contains(line, " 0 kB") {
			found = append(found, m)
		}
	}
	return found
}
