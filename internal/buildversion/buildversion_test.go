package buildversion

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOf(t *testing.T) {
	recorded := func(version string) func() (*debug.BuildInfo, bool) {
		return func() (*debug.BuildInfo, bool) {
			return &debug.BuildInfo{Main: debug.Module{Version: version}}, version != ""
		}
	}
	require.Equal(t, "v1.2.3", Of("v1.2.3", recorded("v0.1.0")))
	require.Equal(t, "v0.1.0", Of(Unset, recorded("v0.1.0")))
	require.Equal(t, "v0.1.0-rc1", Of(Unset, recorded("v0.1.0-rc1")))
	require.Equal(t, "0123456789ab+dirty", Of(Unset, recorded("v0.1.1-0.20260102030405-0123456789ab+dirty")))
	require.Equal(t, "0123456789ab", Of(Unset, recorded("v0.0.0-20260102030405-0123456789ab")))
	require.Equal(t, Unset, Of(Unset, recorded("(devel)")))
	require.Equal(t, Unset, Of(Unset, recorded("")))
}
