// Package frame holds the constants that both ends of the agent's socket share. Package rsh describes the protocol and
// has the server and one client. Package early has another client, which must not import package rsh, because every
// remote shell process would initialise the imports of rsh. This package has nothing to initialise.
package frame

import "time"

// Protocol is the first field of a request: the name and version of the protocol.
const Protocol = "paiinit-rsh/3"

// The kinds of frames.
const (
	Request = 'R'
	Known   = 'Q'
	Signal  = 'S'
	Resize  = 'W'
	Exit    = 'X'
	Killed  = 'K'
	Error   = 'E'
	Again   = 'A'
	Foreign = 'U'
)

// HeaderSize is the length of a header: the kind, and the length of the content in 4 bytes.
const HeaderSize = 5

// AgentTimeout bounds how long the agent may leave a signal that ends the command unread before the client gives up.
const AgentTimeout = 2 * time.Second

// Header returns the first bytes of a frame with n bytes of content.
func Header(kind byte, n int) []byte {
	return []byte{kind, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}
}
