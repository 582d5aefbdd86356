package localapi

import (
	"context"
	"errors"
	"net"
	"strconv"
	"time"
)

// Timeline is what happened to each rank, by rank 0's clock, in this container's time of day.
type Timeline struct {
	Now    time.Time `json:"now"`
	Job    string    `json:"job"`
	Ranks  []Times   `json:"ranks"`
	Ended  bool      `json:"ended"`
	Status int       `json:"status"` // of the job, if Ended
	Reason string    `json:"reason"` // how it ended, in lines for people, if Ended
	// Stopped says that a signal from outside ended the job: it has not failed.
	Stopped bool       `json:"stopped"`
	Facts   [][]string `json:"facts"` // name and value
	Drift   [][]string `json:"drift"` // a fact, one of its values, and the ranks that have this value
}

// Times are the events of one rank. Zero = it has not happened, or is not known.
type Times struct {
	Rank      int       `json:"rank"` // -1 = not agreed yet
	Name      string    `json:"alias"`
	Started   time.Time `json:"started,omitzero"`   // its container
	Resolved  time.Time `json:"resolved,omitzero"`  // its name
	Heard     time.Time `json:"heard,omitzero"`     // rank 0 first knew of it
	Reachable time.Time `json:"reachable,omitzero"` // rank 0 was connected to it
	Committed time.Time `json:"committed,omitzero"` // it had acknowledged the list of ranks
	Launched  time.Time `json:"launched,omitzero"`  // it was told to go; on rank 0: the command was started
	Session   time.Time `json:"session,omitzero"`   // a launcher's first session on it
	Ended     time.Time `json:"ended,omitzero"`
	Lost      bool      `json:"lost,omitempty"`
	Reason    string    `json:"reason,omitempty"` // why it is missing or lost
}

const askTimeline = "timeline"

// Timeline asks what happened to each rank.
func (c Client) Timeline(ctx context.Context) (*Timeline, error) {
	a, err := c.ask(ctx, request{Ask: askTimeline})
	if err == nil && a.Timeline == nil {
		err = errors.New("reading the answer of paiinit: the timeline is missing")
	}
	return a.Timeline, err
}

// Address returns host and port, as far as they are known.
func (r *Rank) Address() string {
	if r.Port <= 0 {
		return r.Host
	}
	return net.JoinHostPort(r.Host, strconv.Itoa(r.Port))
}
