package rsh

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/paiinit/paiinit/internal/unixsock"
)

// ServeKey lets other ssh clients of this container log in with the job's key without seeing it: it serves the protocol
// of ssh-agent(1) on a Unix socket until ctx ends. The agent holds this one key, signs only logins, and refuses every
// change. Like ServeAgent, it serves only processes of its own user and of root. It uses only a.Person.
func (p *Pool) ServeKey(ctx context.Context, ln *net.UnixListener, a Agent) error {
	refuse := func(err error) { p.cfg.Logger.Warn("refused to sign a login", "err", err) }
	err := unixsock.Server{
		Answer: func(ctx context.Context, conn *net.UnixConn, pid int) {
			stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
			defer stop()
			person, err := a.personBehind(pid)
			if err != nil {
				refuse(err)
				return
			}
			if person != "" {
				p.cfg.Logger.Info("the job's key may sign a login for a person", "who", person)
			}
			if err := answerKey(conn, p.cfg.User); !errors.Is(err, io.EOF) && ctx.Err() == nil {
				p.cfg.Logger.Debug("a client of the key agent failed", "err", err)
			}
		},
		Refuse: func(_ *net.UnixConn, err error) { refuse(err) },
		Retry: func(err error, pause time.Duration) {
			p.cfg.Logger.Warn("cannot accept a client of the key agent, trying again", "err", err, "pause", pause)
		},
	}.Serve(ctx, ln)
	if err != nil {
		return fmt.Errorf("serving the key agent: %w", err)
	}
	return nil
}

// The messages of draft-ietf-sshm-ssh-agent, 5: a length (4 bytes, big endian), a number and the content.
const (
	agentFailure         = 5
	agentListKeys        = 11
	agentKeys            = 12
	agentSign            = 13
	agentSignature       = 14
	maxAgentMessage      = 256 << 10 // the limit of ssh-agent(1)
	agentComment         = "the key of the job"
	loginRequest    byte = 50 // SSH_MSG_USERAUTH_REQUEST
)

// answerKey answers the messages of one client until it disconnects, and returns why it ended. It does not use
// x/crypto's agent, which writes refusals to the standard logger of the process.
func answerKey(conn io.ReadWriter, key ssh.Signer) error {
	for {
		var head [4]byte
		if _, err := io.ReadFull(conn, head[:]); err != nil {
			return err
		}
		size := binary.BigEndian.Uint32(head[:])
		if size == 0 || size > maxAgentMessage {
			return fmt.Errorf("a message has %d bytes, expected 1 to %d", size, maxAgentMessage)
		}
		message := make([]byte, size)
		if _, err := io.ReadFull(conn, message); err != nil {
			return err
		}
		answer := struct{ Message []byte }{answerMessage(message, key)}
		if _, err := conn.Write(ssh.Marshal(answer)); err != nil {
			return err
		}
	}
}

func answerMessage(message []byte, key ssh.Signer) []byte {
	public := key.PublicKey()
	switch message[0] {
	case agentListKeys:
		return append([]byte{agentKeys}, ssh.Marshal(struct {
			Count   uint32
			Key     []byte
			Comment string
		}{1, public.Marshal(), agentComment})...)
	case agentSign:
		var m struct {
			Key, Data []byte
			Flags     uint32
		}
		if ssh.Unmarshal(message[1:], &m) != nil || !bytes.Equal(m.Key, public.Marshal()) || !isLogin(m.Data, public) {
			break
		}
		if signature, err := key.Sign(rand.Reader, m.Data); err == nil {
			return append([]byte{agentSignature}, ssh.Marshal(struct{ Signature []byte }{ssh.Marshal(signature)})...)
		}
	}
	return []byte{agentFailure}
}

// isLogin reports whether data is what a client signs to log in with a key (RFC 4252, 7), with or without a host key
// bound to it (OpenSSH's PROTOCOL, 1.9).
func isLogin(data []byte, key ssh.PublicKey) bool {
	var m struct {
		Session   []byte
		Type      byte
		User      string
		Service   string
		Method    string
		Signed    bool
		Algorithm string
		Key       []byte
		Rest      []byte `ssh:"rest"`
	}
	if ssh.Unmarshal(data, &m) != nil {
		return false
	}
	bound := m.Method == "publickey-hostbound-v00@openssh.com"
	return m.Type == loginRequest && m.Service == "ssh-connection" && m.Signed &&
		(bound || m.Method == "publickey" && len(m.Rest) == 0) && bytes.Equal(m.Key, key.Marshal())
}
