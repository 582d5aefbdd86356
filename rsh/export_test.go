package rsh

import "context"

// AnswerMessage is for the tests of package rsh_test.
var AnswerMessage = answerMessage

// Request is for the tests of package rsh_test.
type Request = request

// Exec runs a command on the target, as the agent does.
func (p *Pool) Exec(ctx context.Context, t Target, r request) (Status, error) {
	s, err := p.openSession(ctx, t)
	if err != nil {
		return Status{}, err
	}
	return p.exec(ctx, t, s, r, func() {})
}

// Connect makes sure that there is a connection to the target, and returns the target with the ID that it proved.
func (p *Pool) Connect(ctx context.Context, t Target) (Target, error) {
	l, err := p.link(ctx, t, 0)
	if err != nil {
		return t, err
	}
	t.ID = l.conn.id
	return t, nil
}
