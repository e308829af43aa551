package acl

import (
	"context"

	"github.com/pannier/pannier/cluster"
	ledger "github.com/pannier/pannier/cluster/acl"
	"github.com/pannier/pannier/cluster/state"
)

// Here is a Finder of a host that has the ledger: its own copy answers, without a call.
type Here struct {
	Ledger interface {
		Read(ctx context.Context, fn func(tx *state.ReadTx) error) error
	}
}

// Granted reads a token.
func (h Here) Granted(ctx context.Context, secretHash string) (g ledger.Granted, err error) {
	err = h.Ledger.Read(ctx, func(tx *state.ReadTx) error {
		g, err = tx.ACLGranted(secretHash)
		return err
	})
	return g, err
}

// Servers is a Finder of a host without the ledger: the servers answer.
type Servers struct {
	Ledger interface {
		Granted(ctx context.Context, secretHash string, b cluster.Blocking) (ledger.Granted, uint64, error)
	}
}

// Granted asks for a token.
func (s Servers) Granted(ctx context.Context, secretHash string) (ledger.Granted, error) {
	g, _, err := s.Ledger.Granted(ctx, secretHash, cluster.Blocking{})
	return g, err
}
