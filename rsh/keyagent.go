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

// ServeKey lets other ssh clients of this container log in with a key that they never see: it answers the protocol of
// ssh-agent(1) on a Unix socket until ctx ends. The agent has this one key, signs logins and nothing else, and cannot be
// changed. It serves processes of its own user and of root only, like ServeAgent,
// which runs any command for them. Of a it uses Person.
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
				p.cfg.Logger.Debug("a client of the key agent", "err", err)
			}
		},
		Refuse: func(_ *net.UnixConn, err error) { refuse(err) },
		Retry: func(err error, pause time.Duration) {
			p.cfg.Logger.Warn("cannot accept a client of the key agent, trying again", "err", err, "pause", pause)
		},
	}.Serve(ctx, ln)
	if err != nil {
		return fmt.Errorf("rsh: %w", err)
	}
	return nil
}

// The messages of draft-ietf-sshm-ssh-agent, 5. A message is its length (4 bytes, big endian), its number and its content.
const (
	agentFailure         = 5
	agentListKeys        = 11
	agentKeys            = 12
	agentSign            = 13
	agentSignature       = 14
	maxAgentMessage      = 256 << 10 // as ssh-agent(1) has it
	agentComment         = "the key of the job"
	loginRequest    byte = 50 // SSH_MSG_USERAUTH_REQUEST
)

// answerKey answers the messages of one client until it leaves, and returns why it ended. It is not x/crypto's agent, which writes what it refuses to
// the log of the whole process.
func answerKey(conn io.ReadWriter, key ssh.Signer) error {
	for {
		var head [4]byte
		if _, err := io.ReadFull(conn, head[:]); err != nil {
			return err
		}
		size := binary.BigEndian.Uint32(head[:])
		if size == 0 || size > maxAgentMessage {
			return fmt.Errorf("a message of %d bytes", size)
		}
		message := make([]byte, size)
		if _, err := io.ReadFull(conn, message); err != nil {
			return err
		}
		answer := answerMessage(message, key)
		if _, err := conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(answer))), answer...)); err != nil {
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

// isLogin says whether data is what a client signs to log in with a key (RFC 4252, 7), alone or bound to a host key
// (OpenSSH's PROTOCOL, 1.9).
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
	return m.Type == loginRequest && m.Service == "ssh-connection" && (bound || m.Method == "publickey" && len(m.Rest) == 0) && m.Signed && bytes.Equal(m.Key, key.Marshal())
}
