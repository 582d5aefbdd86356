package rsh

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCommandLine(t *testing.T) {
	uid := strconv.Itoa(os.Getuid())
	for line, want := range map[string]struct {
		inv        Invocation
		secretFile string
	}{
		"host true":                            {Invocation{Host: "host", Command: "true"}, ""},
		"--secret-file /s host true":           {Invocation{Host: "host", Command: "true"}, "/s"},
		"--secret-file=/s host true":           {Invocation{Host: "host", Command: "true"}, "/s"},
		"-n --secret-file=/s host true":        {Invocation{Host: "host", Command: "true", NoStdin: true}, "/s"},
		"host --secret-file=/s true":           {Invocation{Host: "host", Command: "true"}, ""},
		"host tool --secret-file=/s":           {Invocation{Host: "host", Command: "tool --secret-file=/s"}, ""},
		"ada@host true":                        {Invocation{Host: "host", Command: "true"}, ""},
		uid + "@host true":                     {Invocation{Host: "host", Command: "true"}, ""},
		"-l no-such-user host true":            {Invocation{Host: "host", Command: "true", User: "no-such-user"}, ""},
		"--secret-file /s no-such-user@h true": {Invocation{Host: "h", Command: "true", User: "no-such-user"}, "/s"},
	} {
		inv, secretFile, err := CommandLine(strings.Fields(line), []string{"HOME=/", "USER=ada"})
		require.NoError(t, err, line)
		require.Equal(t, want.inv, inv, line)
		require.Equal(t, want.secretFile, secretFile, line)
	}
	_, secretFile, err := CommandLine([]string{"--secret-file"}, nil)
	require.Error(t, err, "neither a file nor a host")
	require.Empty(t, secretFile)
}
