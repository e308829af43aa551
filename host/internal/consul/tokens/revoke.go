package tokens

import (
	"cmp"
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/system/failpoint"
	"github.com/pannier/pannier/internal/refusal"
	"github.com/pannier/pannier/sdk/identity"
)

const (
	// longestLogin bounds the life of a token from a login about which nothing is known: Consul's default bound
	// (max_token_ttl of an auth method is at most 24h), plus the time that a start may take.
	longestLogin = 25 * time.Hour
	// clockMargin is how far Consul's clock may be behind this host's.
	clockMargin = time.Minute
)

// Revoke revokes a token and removes its record once Consul has confirmed that it is gone. It succeeds for an
// unknown token. secret may be empty if the token was minted. Without the secret of a login, the ledger keeps the
// record until the token has expired. It also keeps the record of a token that Consul has not answered for, for
// the next sweep.
func (a *Authority) Revoke(ctx context.Context, t claim.Token, secret string) error {
	unlock, err := a.tokens.Lock(ctx, t.ID)
	if err != nil {
		return err
	}
	defer unlock()
	if t, err = a.freshest(ctx, t); err != nil {
		return err
	}
	gone, err := a.end(ctx, t, secret)
	if err != nil || !gone || a.inDoubt(t.ID) {
		return err
	}
	failpoint.Here("token", "revoked")
	_, err = cluster.Apply(ctx, a.Ledger, &command.DeleteTokens{IDs: []string{t.ID}})
	return ledgerError(err)
}

// Forget removes the record of a token that Consul has never made: it was not asked, or has refused.
func (a *Authority) Forget(ctx context.Context, t claim.Token) error {
	_, err := cluster.Apply(ctx, a.Ledger, &command.DeleteTokens{IDs: []string{t.ID}})
	return ledgerError(err)
}

// freshest returns the ledger's record of a token, which may have more than the caller's, or the caller's if there
// is none.
func (a *Authority) freshest(ctx context.Context, t claim.Token) (noted claim.Token, err error) {
	err = a.Ledger.Read(ctx, func(tx *state.ReadTx) error {
		noted, err = tx.Token(t.ID)
		return err
	})
	switch {
	case errors.Is(err, claim.ErrTokenNotFound):
		return t, nil
	case err != nil:
		return t, ledgerError(err)
	case !noted.SamePurpose(t):
		return t, otherPurpose(t)
	}
	return noted, nil
}

// end makes Consul revoke a token; gone is false if the token is left to expire. The caller holds the token's
// lock.
func (a *Authority) end(ctx context.Context, t claim.Token, secret string) (gone bool, err error) {
	consul, err := a.consul(t.Consul)
	if err != nil {
		return false, err
	}
	of, err := a.subject(ctx, t)
	if err != nil {
		return false, err
	}
	token := identity.Token{Accessor: cmp.Or(t.Accessor, t.ID), Subject: of}
	err = a.Identity(ctx, t.Consul, func(ctx context.Context, i identity.Identity) error {
		return i.Revoke(ctx, consul, token, secret)
	})
	noted := []any{"accessor", token.Accessor, "workload", t.Workload, "service", t.Service, "node", t.Node}
	switch {
	case status.Code(err) == codes.AlreadyExists:
		a.Log.Warn("a token was not revoked: it is not what the ledger has under this accessor", append(noted, "error", err)...)
		return true, nil
	case err == nil:
		a.Log.Info("a token was revoked", noted...)
	}
	if secret != "" || !a.byLogin(t) {
		return err == nil, err
	}
	switch code := status.Code(err); {
	case code == codes.OK:
		return t.Accessor != "" || over(t), nil
	case refusal.Is(code):
		return over(t), nil
	default:
		return false, err
	}
}

// byLogin reports whether a token was, or would have been, issued by a login.
func (a *Authority) byLogin(t claim.Token) bool {
	return a.Consuls[t.Consul].AuthMethod != "" && t.Accessor != t.ID
}

// over reports whether a token has expired.
func over(t claim.Token) bool {
	ends := endsAt(t)
	return !ends.IsZero() && time.Now().After(ends.Add(clockMargin))
}

// endsAt returns when a login's token expires; zero: never.
func endsAt(t claim.Token) time.Time {
	if t.ExpiresAt.IsZero() && t.Accessor == "" {
		return t.CreatedAt.Add(longestLogin)
	}
	return t.ExpiresAt
}
