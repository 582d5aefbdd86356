package inspect

import (
	"fmt"
	"math"
	"os"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"
)

// ThisSystem asks the kernel about this container.
func ThisSystem() System {
	return System{
		Space: func(dir string) (total, free uint64, err error) {
			var s unix.Statfs_t
			if err := unix.Statfs(dir, &s); err != nil {
				return 0, 0, fmt.Errorf("%s cannot be used: %w", dir, err)
			}
			size := uint64(s.Frsize)
			return s.Blocks * size, s.Bavail * size, nil
		},
		Writable: func(dir string) error {
			if err := unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, 0); err != nil {
				return fmt.Errorf("%s is not writable: %w", dir, err)
			}
			return nil
		},
		Memlock: hardLimit(unix.RLIMIT_MEMLOCK),
		NoFile:  hardLimit(unix.RLIMIT_NOFILE),
		PID:     os.Getpid(),
		Now:     time.Now,
		Built:   built(),
	}
}

// built returns when this program was built: the time of its commit, else of its file.
func built() time.Time {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if t, err := time.Parse(time.RFC3339, s.Value); s.Key == "vcs.time" && err == nil {
				return t
			}
		}
	}
	if self, err := os.Executable(); err == nil {
		if info, err := os.Stat(self); err == nil {
			return info.ModTime()
		}
	}
	return time.Time{}
}

// hardLimit returns the hard limit of a resource, math.MaxUint64 if there is none.
func hardLimit(resource int) uint64 {
	limit := unix.Rlimit{Max: math.MaxUint64}
	_ = unix.Getrlimit(resource, &limit) // fails for unknown resources only
	return limit.Max
}
