package netif

import (
	"math/rand/v2"
	"net"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHeldPort(t *testing.T) {
	p, err := HoldPort(rand.IntN)
	require.NoError(t, err)
	require.GreaterOrEqual(t, p.Number(), 20000)
	require.Less(t, p.Number(), 30000)
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(p.Number()))
	_, err = net.Listen("tcp", addr)
	require.Error(t, err, "nobody else gets it")
	_, err = net.Dial("tcp", addr)
	require.Error(t, err, "and nobody answers")

	offers := []int{p.Number() - 20000, p.Number() - 20000, 9999}
	second, err := HoldPort(func(int) int { n := offers[0]; offers = offers[1:]; return n })
	require.NoError(t, err)
	require.Equal(t, 29999, second.Number(), "a port that is taken is passed over")
	second.Release()

	p.Release()
	p.Release()
	ln, err := net.Listen("tcp", addr)
	require.NoError(t, err)
	require.NoError(t, ln.Close())
	none, err := HoldPort(func(int) int { return 1 << 17 })
	require.Error(t, err, "what the kernel refuses is no port")
	require.Nil(t, none)
	require.Zero(t, none.Number())
	none.Release()
}
