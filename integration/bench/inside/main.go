// Command inside runs in the containers of benchmarks, beside the programs that they measure.
//
//	inside sshd HOST-SEED USER-SEED        serves SSH on port 12345, with keys derived from the seeds
//	inside key USER-SEED FILE              writes the user's private key in the format of ssh(1)
//	inside probe RATE ADDR...              asks /readyz at port 12345 of the addresses in turn, RATE times a second,
//	                                       and prints a line after each RATE answers
package main

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"
	"time"

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
	if len(args) > 2 && args[0] == "probe" {
		rate, err := strconv.Atoi(args[1])
		if err != nil || rate < 1 {
			return fmt.Errorf("probe %s: not a number above 0", args[1])
		}
		return probe(rate, args[2:])
	}
	return errors.New("usage: inside sshd HOST-SEED USER-SEED | key USER-SEED FILE | probe RATE ADDR ... (of IP)")
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

// probe asks as the kubelets of a cluster do: each time over a new connection.
func probe(rate int, addrs []string) error {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
	var answers atomic.Int64
	tick := time.NewTicker(time.Second / time.Duration(rate))
	for i := 0; ; i++ {
		<-tick.C
		addr := net.JoinHostPort(addrs[i%len(addrs)], "12345")
		go func() { // ends with the program
			resp, err := client.Get("http://" + addr + "/readyz")
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			if answers.Add(1)%int64(rate) == 0 {
				_, _ = fmt.Fprintln(os.Stdout, rate, "answers")
			}
		}()
	}
}
