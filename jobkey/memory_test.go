package jobkey

import (
	"bufio"
	"bytes"
	"crypto/subtle"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// Derive leaves no copy of what it computes from a short secret, neither on the heap nor on a stack: the runtime does
// not clear the old stack when it moves a goroutine to a larger or smaller one.
func TestDeriveLeavesNoCopy(t *testing.T) {
	const step, overlap, reserved = 1 << 20, 64, 1 << 30 // the race detector reserves terabytes
	mask := bytes.Repeat([]byte{0x5a}, step+overlap)
	hidden := func(b []byte) []byte { // this process must not hold the texts that it looks for
		subtle.XORBytes(b, b, mask)
		return b
	}
	salt := names(stretched, "job", "1")
	password := newMAC(secret[:31]).sum(salt)
	key := scryptKey(password, salt)
	prk := newMAC(salt).sum(key)
	texts := map[string][]byte{"password": hidden(password), "key": hidden(key), "pseudorandom key": hidden(prk)}

	const attempts = 20
	for range attempts {
		done := make(chan error)
		go func() {
			grow(1000) // the garbage collector in Derive moves this goroutine back to a small stack
			_, err := Derive(secret[:31], "job", "1")
			done <- err
		}()
		require.NoError(t, <-done)
	}

	memory, err := os.Open("/proc/self/mem")
	require.NoError(t, err)
	defer func() { _ = memory.Close() }()
	maps, err := os.Open("/proc/self/maps")
	require.NoError(t, err)
	defer func() { _ = maps.Close() }()
	buf := make([]byte, step+overlap)
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		var begin, end uint64
		var mode string
		_, err := fmt.Sscanf(lines.Text(), "%x-%x %s", &begin, &end, &mode)
		require.NoError(t, err)
		if mode[:2] != "rw" || end-begin > reserved {
			continue
		}
		for ; begin < end; begin += step {
			n, _ := memory.ReadAt(buf[:min(step+overlap, end-begin)], int64(begin)) // some of it cannot be read
			hidden(buf[:n])
			for name, text := range texts {
				require.Equal(t, -1, bytes.Index(buf[:n], text), "%s in %s", name, lines.Text())
			}
			clear(buf)
		}
	}
}

// grow makes the stack of its goroutine larger than 64 bytes for each level.
func grow(levels int) byte {
	var frame [64]byte
	if levels > 0 {
		frame[levels%64] = grow(levels - 1)
	}
	return frame[levels%7]
}
