package main

import (
	"log/slog"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/localapi"
	"github.com/paiinit/paiinit/rendezvous"
	"github.com/paiinit/paiinit/sshd"
)

// A status uses the rendezvous' words for phases and states.
func TestStatusWords(t *testing.T) {
	for phase, want := range map[rendezvous.Phase]localapi.Phase{
		rendezvous.Gathering: localapi.Gathering, rendezvous.Prepared: localapi.Prepared,
		rendezvous.Running: localapi.Running, rendezvous.Ended: localapi.Ended,
	} {
		require.Equal(t, want, localapi.Phase(phase))
	}
	for standing, want := range map[rendezvous.Standing]localapi.State{
		rendezvous.Present: localapi.Present, rendezvous.Heard: localapi.Heard,
		rendezvous.Absent: localapi.Missing, rendezvous.Lost: localapi.Lost,
	} {
		require.Equal(t, want, localapi.State(standing))
	}
}

// A person who may not use the other ranks does not get their names.
func TestNames(t *testing.T) {
	c := &container{identity: identity{log: slog.New(slog.DiscardHandler)}}
	names, refusal := answers{c}.Names(os.Getpid())
	require.Nil(t, refusal)
	require.Empty(t, names, "before the commit")

	c.agree(rendezvous.Roster{Members: members("node-7", "node", "node")}, launch.Fabric{})
	want := [][]string{{"node-7", "worker-0"}, {"worker-1"}, {"worker-2"}}
	names, refusal = answers{c}.Names(os.Getpid())
	require.Nil(t, refusal)
	require.Equal(t, want, names)

	c.people.Note(sshd.CommandEvent{PID: os.Getpid(), Person: "alice@laptop"})
	names, refusal = answers{c}.Names(os.Getpid())
	require.Nil(t, refusal)
	require.Equal(t, want, names)

	c.settings.people = peopleLocal
	_, refusal = answers{c}.Names(os.Getpid())
	require.Equal(t, &localapi.Refusal{
		Exit: statusUnmendable, Text: "alice@laptop may run commands only in this container (--people local)",
	}, refusal)
}
