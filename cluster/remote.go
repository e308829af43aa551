package cluster

import (
	"context"

	"github.com/pannier/pannier/cluster/command"
)

// Remote brings commands and queries, encoded, to the server that leads. It looks for that
// server, and repeats what it brings over elections, until ctx ends. An error is of
// the way there: ErrUncertain where the command may have been applied.
type Remote interface {
	Apply(ctx context.Context, entry []byte) (outcome []byte, err error)
	Query(ctx context.Context, query []byte) (answer []byte, err error)
}

// Client is an agent's way to the ledger where it has none itself.
type Client struct {
	Commands
	Queries
}

// NewClient makes the client of the servers that remote reaches.
func NewClient(remote Remote) *Client {
	via := forwarder{remote}
	return &Client{Commands{to: via}, Queries{to: via}}
}

// forwarder has all done by the server that leads.
type forwarder struct{ remote Remote }

func (f forwarder) apply(ctx context.Context, c command.Command) (any, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if err := setKey(ctx, c); err != nil {
		return nil, err
	}
	return forward(ctx, f.remote, c)
}

func (f forwarder) ask(ctx context.Context, q command.Query) (any, uint64, error) {
	query, err := command.EncodeQuery(q)
	if err != nil {
		return nil, 0, err
	}
	answer, err := f.remote.Query(ctx, query)
	if err != nil {
		return nil, 0, err
	}
	return command.DecodeAnswer(q, answer)
}

func forward(ctx context.Context, remote Remote, c command.Command) (any, error) {
	entry, err := command.Encode(c)
	if err != nil {
		return nil, err
	}
	outcome, err := remote.Apply(ctx, entry)
	if err != nil {
		return nil, err
	}
	return command.DecodeOutcome(c, outcome)
}
