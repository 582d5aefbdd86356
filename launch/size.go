package launch

import (
	"fmt"
	"strings"
)

// maxVariable is MAX_ARG_STRLEN of Linux: 32 pages of 4 KiB for "NAME=value" with its final zero
// (include/uapi/linux/binfmts.h).
const maxVariable = 32 * 4096

// CheckSizes returns an error that names a variable too long for execve(2), whose own error, "argument list too long",
// names none.
func CheckSizes(environ []string) error {
	for _, kv := range environ {
		if n := len(kv) + 1; n > maxVariable {
			name, _, _ := strings.Cut(kv, "=")
			return fmt.Errorf("%s would be %d bytes; Linux limits one variable to %d", name, n, maxVariable)
		}
	}
	return nil
}
