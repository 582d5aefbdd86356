package main

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// owned refuses a directory that another user could have laid out in a place where everybody may write.
func owned(name string, info fs.FileInfo) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !ok {
		return fmt.Errorf("%s: not a directory", name)
	}
	if int(st.Uid) != os.Geteuid() && st.Uid != 0 || info.Mode().Perm()&0o002 != 0 {
		return fmt.Errorf("%s: another user can write there", name)
	}
	return nil
}
