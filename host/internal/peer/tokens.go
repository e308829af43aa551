package peer

import (
	"context"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
)

// NodeTokens give a node's services their tokens: the leader asks Consul for them, and
// the node's own Consul agent is where they are read back. It implements servicesteps.Tokens.
type NodeTokens struct {
	Servers *Servers
	// Local reads a token back from this node's Consul agent (tokens.Authority).
	Local interface {
		Read(ctx context.Context, consul, secret string) error
	}
}

// Intend notes in the ledger that Consul will be asked for t.
func (n NodeTokens) Intend(ctx context.Context, t claim.Token) error {
	return n.Servers.IntendToken(ctx, t)
}

// Derive asks Consul for the token that the ledger knows as t.ID.
func (n NodeTokens) Derive(ctx context.Context, t claim.Token) (derived claim.Token, secret string, err error) {
	return n.Servers.DeriveToken(ctx, t)
}

// Read reads a token back from this node's Consul agent.
func (n NodeTokens) Read(ctx context.Context, consul, secret string) error {
	return n.Local.Read(ctx, consul, secret)
}

// Revoke ends a token and forgets it once Consul has said that it is gone.
func (n NodeTokens) Revoke(ctx context.Context, t claim.Token, secret string) error {
	return n.Servers.RevokeToken(ctx, t, secret)
}

// OnNode lists the ledger's tokens of a node.
func (n NodeTokens) OnNode(ctx context.Context, node string) ([]claim.Token, error) {
	tokens, _, err := cluster.NewClient(n.Servers).TokensOn(ctx, node, cluster.Blocking{})
	return tokens, err
}
