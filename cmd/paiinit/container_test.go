package main

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNobodyGetsInBeforeTheCheck(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, inner.Close()) }()
	checks, bad := 0, errors.New("it lets everybody in")
	var found error
	ln := &cautious{inner, func() error { checks++; return found }}
	connect := func() net.Conn {
		c, err := net.Dial("tcp", inner.Addr().String())
		require.NoError(t, err)
		return c
	}
	require.Zero(t, checks, "nobody has come")

	found = bad
	c := connect()
	_, err = ln.Accept()
	require.ErrorIs(t, err, bad)
	_, err = c.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF, "it was sent away")
	require.NoError(t, c.Close())

	found = nil
	for range 3 {
		c := connect()
		in, err := ln.Accept()
		require.NoError(t, err)
		require.NoError(t, errors.Join(in.Close(), c.Close()))
	}
	require.Equal(t, 2, checks, "one of them was passed")
}

func TestStateOfAnEarlierStartIsGone(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		s, err := openState(dir, nil)
		require.NoError(t, err)
		for _, name := range []string{"status.json", "hostfile", "hostfile.hydra", "ssh_config", "known_hosts"} {
			require.NoFileExists(t, filepath.Join(dir, name))
			require.NoError(t, s.writeFile(name, []byte("left")))
		}
		s.close()
	}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 7, "those, bin and tmp: %v", entries)
}
