package cluster

import (
	"context"

	"github.com/pannier/pannier/cluster/command"
)

// Remote brings commands and queries to the server that leads: it finds that server, and repeats the call over
// elections until ctx ends. It encodes them only where they leave this process. Its errors are those of the command or
// query and those of the way there: ErrNotLeader, and ErrUncertain where the command may have been applied.
type Remote interface {
	Apply(ctx context.Context, c command.Command) (result any, err error)
	Query(ctx context.Context, q command.Query) (answer any, index uint64, err error)
}

// Client reaches the ledger from an agent that keeps none itself.
type Client struct {
	Commands
	Queries
}

// NewClient makes the client of the servers that remote reaches.
func NewClient(remote Remote) *Client {
	via := forwarder{remote}
	return &Client{Commands{to: via}, Queries{to: via}}
}

// forwarder has commands and queries answered by the server that leads.
type forwarder struct{ remote Remote }

func (f forwarder) apply(ctx context.Context, c command.Command) (any, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if err := setKey(ctx, c); err != nil {
		return nil, err
	}
	return f.remote.Apply(ctx, c)
}

func (f forwarder) ask(ctx context.Context, q command.Query) (any, uint64, error) {
	return f.remote.Query(ctx, q)
}
