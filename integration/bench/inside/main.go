// Command inside runs in the containers of benchmarks, beside the programs that they measure.
//
//	inside sshd HOST-SEED USER-SEED        serves SSH on port 12345, with keys derived from the seeds
//	inside key USER-SEED FILE              writes the user's private key in the format of ssh(1)
package main

import (
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"

	"crypto/ed25519"
	"crypto/sha256"

	"golang.org/x/crypto/ssh"

	"github.com/paiinit/paiinit/sshd"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "inside: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 3 && args[0] == "sshd":
		return serve(args[1], args[2])
	case len(args) == 3 && args[0] == "key":
		block, err := ssh.MarshalPrivateKey(key(args[1]), "")
		if err != nil {
			return err
		}
		return os.WriteFile(args[2], pem.EncodeToMemory(block), 0o600)
	}
	return errors.New("usage: inside sshd HOST-SEED USER-SEED | key USER-SEED FILE")
}

func key(seed string) ed25519.PrivateKey {
	sum := sha256.Sum256([]byte(seed))
	return ed25519.NewKeyFromSeed(sum[:])
}

func serve(host, user string) error {
	hostKey, err := ssh.NewSignerFromKey(key(host))
	if err != nil {
		return err
	}
	userKey, err := ssh.NewSignerFromKey(key(user))
	if err != nil {
		return err
	}
	s, err := sshd.New(sshd.Config{
		HostKey: hostKey, Authorized: []ssh.PublicKey{userKey.PublicKey()}, Environ: os.Environ(),
	})
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", ":12345")
	if err != nil {
		return err
	}
	return s.Serve(ln)
}
