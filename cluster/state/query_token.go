package state

import (
	"fmt"
	"strings"

	"github.com/pannier/pannier/cluster/claim"
)

// Token reads one token's record. The error is claim.ErrTokenNotFound where the ledger
// knows none.
func (tx *ReadTx) Token(id string) (claim.Token, error) {
	t, found, err := read[claim.Token](tx, tokenKey(id))
	if err == nil && !found {
		err = fmt.Errorf("token %q: %w", id, claim.ErrTokenNotFound)
	}
	return t, err
}

// Tokens lists the tokens of one namespace or, with an empty one, of all, by namespace
// and workload. Their workloads may be gone.
func (tx *ReadTx) Tokens(namespace string) ([]claim.Token, error) {
	sub := ""
	if namespace != "" {
		sub = namespace + "/"
	}
	return tx.tokensAt(span{base: tokensByWorkload, sub: sub})
}

// TokensOf lists a workload's tokens, those of its runs before included.
func (tx *ReadTx) TokensOf(ref claim.WorkloadRef) ([]claim.Token, error) {
	return tx.tokensAt(span{base: tokensByWorkload, sub: workloadPart(ref) + "/"})
}

// TokensOn lists the tokens of a node.
func (tx *ReadTx) TokensOn(node string) ([]claim.Token, error) {
	return tx.tokensAt(span{base: tokensByNode, sub: node + "/"})
}

// tokensAt reads the tokens that an index's keys lead to: their last part is the id.
func (tx *ReadTx) tokensAt(s span) ([]claim.Token, error) {
	return indexed(tx, s, func(part string) string { return tokens + part[strings.LastIndexByte(part, '/')+1:] }, read[claim.Token])
}

// SigningKey reads the cluster's signing key; found is false while it has none.
func (tx *ReadTx) SigningKey() (k claim.SigningKey, found bool, err error) {
	return read[claim.SigningKey](tx, signingKey)
}
