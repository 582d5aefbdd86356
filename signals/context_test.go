package signals

import (
	"context"
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestContext(t *testing.T) {
	in := make(chan os.Signal)
	s := Watch(in, false)
	defer s.Close()
	cause := errors.New("stopped")
	var asked []os.Signal
	ctx, end := s.Context(t.Context(), func(sig os.Signal) error {
		asked = append(asked, sig)
		if len(asked) == 1 {
			return nil // another rank takes care of the first signal
		}
		return cause
	})
	in <- syscall.SIGTERM
	in <- syscall.SIGHUP
	require.NoError(t, ctx.Err())
	in <- syscall.SIGINT
	<-ctx.Done()
	require.ErrorIs(t, context.Cause(ctx), cause)
	end()
	require.Equal(t, []os.Signal{syscall.SIGTERM, syscall.SIGINT}, asked)

	ctx, end = s.Context(t.Context(), func(os.Signal) error { return cause })
	end()
	require.ErrorIs(t, context.Cause(ctx), context.Canceled)
	in <- syscall.SIGTERM // kept for the next function
	require.Len(t, asked, 2)
}
