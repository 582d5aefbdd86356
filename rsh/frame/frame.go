// Package frame holds what both ends of the agent's socket must write alike. Package rsh describes the protocol and has
// the server and a client; package early of cmd/paiinit has another client, which must not import package rsh: every
// import of its own is initialised in each process of a remote shell. This package has nothing to initialise.
package frame

import "time"

// Protocol names the version of the protocol, in the first field of a request.
const Protocol = "paiinit-rsh/3"

// The kinds of a frame that both clients use.
const (
	Request = 'R'
	Signal  = 'S'
	Exit    = 'X'
	Killed  = 'K'
)

// HeaderSize is the length of a header: the kind, and the length of the content in 4 bytes.
const HeaderSize = 5

// AgentTimeout is how long the agent may leave a signal to end unread before the client ends by itself.
const AgentTimeout = 2 * time.Second

// Header returns the first bytes of a frame with n bytes of content.
func Header(kind byte, n int) []byte {
	return []byte{kind, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}
}
