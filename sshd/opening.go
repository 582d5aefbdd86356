package sshd

import (
	"bytes"
	"fmt"
)

// opening checks what a client sends in the clear, up to its NEWKEYS (RFC 4253, sections 4.2, 6 and 7.3). x/crypto/ssh
// allocates up to 256 KiB as soon as it has read the length of a packet, and keeps them until the rest arrives.
type opening struct {
	stage   stage
	n       int // bytes read of the length, or of the packet after it
	length  uint32
	newKeys bool // this packet is NEWKEYS
}

type stage uint8

const (
	inLine stage = iota // the identification
	inLength
	inPacket
	encrypted
)

const (
	maxClear   = 35000 // bytes that every server must accept (RFC 4253, section 6.1); a key exchange needs about 2,000
	msgNewKeys = 21
)

func (o *opening) feed(b []byte) error {
	for len(b) > 0 {
		switch o.stage {
		case inLine:
			end := bytes.IndexByte(b, '\n')
			if end < 0 {
				return nil
			}
			b, o.stage = b[end+1:], inLength
		case inLength:
			o.length = o.length<<8 | uint32(b[0])
			b = b[1:]
			if o.n++; o.n < 4 {
				continue
			}
			if o.length > maxClear {
				return fmt.Errorf("a packet of %d bytes before the first keys, more than %d", o.length, maxClear)
			}
			o.n, o.stage = 0, inPacket
		case inPacket:
			here := b[:min(len(b), int(o.length)-o.n)]
			if at := 1 - o.n; 0 <= at && at < len(here) { // the first byte is the length of the padding
				o.newKeys = here[at] == msgNewKeys
			}
			o.n += len(here)
			b = b[len(here):]
		case encrypted:
			return nil
		}
		if o.stage == inPacket && o.n == int(o.length) {
			o.n, o.length, o.stage = 0, 0, inLength
			if o.newKeys {
				o.stage = encrypted
			}
		}
	}
	return nil
}
