package sshd

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/pkg/sftp"
	"golang.org/x/sys/unix"
)

// internalSFTP as a forced command serves SFTP, as with OpenSSH.
const internalSFTP = "internal-sftp"

// ServeSFTP answers the requests of an SFTP client (version 3, draft-ietf-secsh-filexfer-02) from in to out until in ends. It is
// the whole of the program that Config.SFTP names: a process of its own, so that nothing that a client
// sends can harm the server, and that its files, directory and memory are its own. Relative names begin at the working directory.
//
// The process becomes not dumpable (prctl(2)). With hidden paths, which Config.SFTP is given as arguments, it loses the
// access to them and all that is below them: by Landlock, for good, where the kernel has it, else by a look at each
// path.
func ServeSFTP(in io.Reader, out io.WriteCloser, hidden []string) error {
	dir, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("sshd: serving sftp: %w", err)
	}
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) // fails for no process
	if len(hidden) > 0 {
		h := newHiding(hidden)
		confined, err := h.confine()
		if err != nil {
			return fmt.Errorf("sshd: serving sftp: %w", err)
		}
		in = &filter{hiding: h, in: in, dir: dir, confined: confined}
	}
	return serveSFTP(dir, in, out)
}

func serveSFTP(dir string, in io.Reader, out io.WriteCloser) error {
	server, err := sftp.NewServer(stream{in, out}, sftp.WithServerWorkingDirectory(dir))
	if err != nil {
		return fmt.Errorf("sshd: serving sftp: %w", err)
	}
	if err := server.Serve(); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("sshd: serving sftp: %w", err)
	}
	return nil
}

type stream struct {
	io.Reader
	io.WriteCloser
}
