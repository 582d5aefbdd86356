package sshd

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/pkg/sftp"
	"golang.org/x/sys/unix"
)

// internalSFTP is the forced command that serves SFTP, as in OpenSSH.
const internalSFTP = "internal-sftp"

// ServeSFTP answers the requests of an SFTP client (version 3, draft-ietf-secsh-filexfer-02) from in to out until in
// ends. The program that Config.SFTP names only calls it: in a process of its own, a client cannot harm the server.
// Relative names start at the working directory.
//
// The process becomes not dumpable (prctl(2)). It loses access to hidden paths, which Config.SFTP gets as arguments,
// and everything below them: permanently by Landlock if the kernel has it, else by a check of each path.
func ServeSFTP(in io.Reader, out io.WriteCloser, hidden []string) error {
	dir, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("serving sftp: %w", err)
	}
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) // never fails
	if len(hidden) > 0 {
		h := newHiding(hidden)
		confined, err := h.confine()
		if err != nil {
			return fmt.Errorf("serving sftp: %w", err)
		}
		in = &filter{hiding: h, in: in, dir: dir, confined: confined}
	}
	return serveSFTP(dir, in, out)
}

func serveSFTP(dir string, in io.Reader, out io.WriteCloser) error {
	server, err := sftp.NewServer(stream{in, out}, sftp.WithServerWorkingDirectory(dir))
	if err != nil {
		return fmt.Errorf("serving sftp: %w", err)
	}
	if err := server.Serve(); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("serving sftp: %w", err)
	}
	return nil
}

type stream struct {
	io.Reader
	io.WriteCloser
}
