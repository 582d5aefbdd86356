package launch

import (
	"fmt"
	"strings"
)

// maxVariable is MAX_ARG_STRLEN of Linux: 32 pages of 4 KiB for "NAME=value" with its final zero (include/uapi/linux/binfmts.h).
const maxVariable = 32 * 4096

// CheckSizes names a variable that execve(2) would refuse: without it the error is "argument list too long", of whichever.
func CheckSizes(environ []string) error {
	for _, kv := range environ {
		if n := len(kv) + 1; n > maxVariable {
			name, _, _ := strings.Cut(kv, "=")
			return fmt.Errorf("%s would be %d bytes; Linux limits one variable to %d", name, n, maxVariable)
		}
	}
	return nil
}
