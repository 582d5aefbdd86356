package sshd

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOpening(t *testing.T) {
	const line = "SSH-2.0-x\r\n"
	packet := func(length int, kind byte) []byte {
		b := make([]byte, 4+length)
		binary.BigEndian.PutUint32(b, uint32(length))
		if length > 1 {
			b[5] = kind
		}
		return b
	}
	huge := []byte{0, 3, 0xff, 0xfc}
	for name, tt := range map[string]struct {
		says []byte
		want string // the refused length; "" = none
	}{
		"no line":              {slices.Repeat([]byte("x"), 1000), ""},
		"longest packet":       {slices.Concat([]byte(line), packet(maxClear, 20), packet(maxClear, 30)), ""},
		"one byte more":        {slices.Concat([]byte(line), packet(maxClear+1, 20)), "35001"},
		"only its length":      {slices.Concat([]byte(line), huge), "262140"},
		"the second one":       {slices.Concat([]byte(line), packet(500, 20), huge), "262140"},
		"after the first keys": {slices.Concat([]byte(line), packet(500, 20), packet(12, msgNewKeys), huge), ""},
		"packets of no content": {
			slices.Concat([]byte(line), packet(0, 0), packet(1, 0), packet(1, 0), huge), "262140",
		},
	} {
		t.Run(name, func(t *testing.T) {
			for step := 1; step <= len(tt.says)+1; step += max(1, step/2) {
				var o opening
				var err error
				for chunk := range slices.Chunk(tt.says, step) {
					if err = o.feed(chunk); err != nil {
						break
					}
				}
				if tt.want == "" {
					require.NoError(t, err, step)
				} else {
					want := "a packet of " + tt.want + " bytes before the first keys, more than 35000"
					require.EqualError(t, err, want, step)
				}
			}
		})
	}
}
