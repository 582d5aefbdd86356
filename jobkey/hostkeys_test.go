package jobkey

import (
	"reflect"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHostKeys(t *testing.T) {
	k := Insecure("job", "")
	hostKey := k.HostKeys()
	var asking sync.WaitGroup
	for range 4 {
		asking.Go(func() {
			for _, id := range []string{"worker-0", "worker-1"} {
				require.Equal(t, k.Host(id).PublicKey(), hostKey(id))
			}
		})
	}
	asking.Wait()
	first, second := reflect.ValueOf(hostKey("worker-0")), reflect.ValueOf(hostKey("worker-0"))
	require.Equal(t, first.Pointer(), second.Pointer(), "the same key, not derived again")
}

func TestRandom(t *testing.T) {
	a, b := Random("job", ""), Random("job", "")
	require.Equal(t, a.Label(), b.Label(), "of the job")
	require.NotEqual(t, a.Host("worker-0").PublicKey(), b.Host("worker-0").PublicKey())
	require.NotEqual(t, a.Gossip(), b.Gossip())
}
