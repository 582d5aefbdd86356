// Package secret finds the secret of a job where users and schedulers put it. It hides how a secret is written in a
// file or variable, and leaves no second copy of it in memory.
package secret

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
)

// maxFile is the number of bytes read of a file. A scheduler's key file has a few KiB.
const maxFile = 1 << 16

// Find returns the secret in the file that the user names, else in a variable, else in the file that the scheduler
// shares, and the name of the file that it has read. secret is nil if there is none. The caller clears it.
//
// The line end that an editor, echo or base64 adds to a file does not count, so that a file and a variable give the
// same secret. Other white space may belong to the secret.
func Find(named string, variable []byte, shared string) (secret []byte, file string, err error) {
	switch {
	case named != "":
		file = named
	case len(variable) > 0:
		return bytes.TrimRight(variable, "\r\n"), "", nil
	case shared != "":
		file = shared
	default:
		return nil, "", nil
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, "", fmt.Errorf("reading the secret: %w", err)
	}
	defer func() { _ = f.Close() }()
	b := make([]byte, maxFile) // io.ReadAll would leave copies of the secret in memory as its buffer grows
	n, err := io.ReadFull(f, b)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, "", fmt.Errorf("reading the secret: %w", err)
	}
	return bytes.TrimRight(b[:n], "\r\n"), file, nil
}
