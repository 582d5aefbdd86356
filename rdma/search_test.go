package rdma

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

func TestSearch(t *testing.T) {
	c := Config{Root: fstest.MapFS{"proc/self/limits": {}}}
	s := Begin(c, FlagRequire)
	require.Equal(t, Probe(c), s.Report())
	<-s.Done()
	require.Equal(t, Probe(c).Summary().Flags|FlagRequire, s.Summary().Flags)

	off := Begin(Config{}, FlagOff) // a Probe without a Root would panic
	<-off.Done()
	require.Equal(t, Summary{Flags: FlagOff}, off.Summary())
}

func TestJudgeEncoded(t *testing.T) {
	ranks := []Summary{{Devices: 1, Flags: FlagNetworkDirect}, {Flags: FlagNetworkDirect}}
	require.Equal(t, Judge(ranks), JudgeEncoded([][]byte{ranks[0].Encode(), ranks[1].Encode()}))
	ranks[1] = Summary{}
	require.Equal(t, Judge(ranks), JudgeEncoded([][]byte{ranks[0].Encode(), {0xff}}), "what cannot be read")
}
