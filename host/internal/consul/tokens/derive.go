package tokens

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/system/failpoint"
	"github.com/pannier/pannier/sdk/identity"
)

// undoTimeout bounds the attempt to revoke a token that was issued but cannot be recorded.
const undoTimeout = 10 * time.Second

// loginGrace is how long a login may go on after its caller has given up. One that is interrupted may have made a token
// whose secret nobody has: it could only expire.
const loginGrace = 2 * time.Second

// Derive asks Consul for the token that the ledger knows as t.ID, for the workload and the service in the ledger,
// and records its accessor if it differs from the id. It may be repeated: a minted token is the same each time, a
// login returns a new one. A login goes on for two seconds after the end of ctx.
//
// Errors: FailedPrecondition if the ledger does not know the token or its workload no longer runs on its node;
// PermissionDenied if t differs from the ledger's record; else the plugin's. Neither secret nor error: this Consul
// has ACLs disabled.
func (a *Authority) Derive(ctx context.Context, t claim.Token) (derived claim.Token, secret string, err error) {
	unlock, err := a.tokens.Lock(ctx, t.ID)
	if err != nil {
		return derived, "", err
	}
	defer unlock()
	if ctx.Err() != nil { // the lock succeeds even then if it is free
		return derived, "", context.Cause(ctx)
	}
	noted, err := a.noted(ctx, t)
	if err == nil {
		derived, secret, err = a.derive(ctx, noted)
	}
	if err != nil {
		return claim.Token{}, "", err
	}
	return derived, secret, nil
}

// noted returns the ledger's record of a token that may be derived.
func (a *Authority) noted(ctx context.Context, t claim.Token) (noted claim.Token, err error) {
	var why string
	err = a.Ledger.Read(ctx, func(tx *state.ReadTx) error {
		if noted, err = tx.Token(t.ID); err != nil {
			return err
		}
		why, err = orphaned(tx, &noted)
		return err
	})
	switch {
	case err != nil:
		return noted, ledgerError(err)
	case !noted.SamePurpose(t):
		return noted, otherPurpose(t)
	case why != "":
		return noted, coded(codes.FailedPrecondition, fmt.Errorf("no token is issued: %s", why))
	}
	return noted, nil
}

// derive asks Consul. The caller holds the token's lock.
func (a *Authority) derive(ctx context.Context, t claim.Token) (claim.Token, string, error) {
	consul, err := a.consul(t.Consul)
	if err != nil {
		return t, "", err
	}
	req := identity.DeriveRequest{ID: t.ID}
	if req.Subject, err = a.subject(ctx, t); err != nil {
		return t, "", err
	}
	if consul.AuthMethod != "" {
		outlives, cancel := outliving(ctx, loginGrace)
		defer cancel()
		ctx = outlives
	}
	if _, wanted := a.Audiences[t.Consul]; wanted || consul.AuthMethod != "" {
		if req.JWT, err = a.sign(ctx, consul.Name, req.Subject); err != nil {
			return t, "", err
		}
	}
	var got identity.Token
	var secret string
	err = a.Identity(ctx, t.Consul, func(ctx context.Context, i identity.Identity) (err error) {
		got, secret, err = i.Derive(ctx, consul, req)
		return err
	})
	failpoint.Here("token", "derived")
	if unanswered(err) {
		a.doubt(t.ID, true)
	}
	if err != nil {
		return t, "", err
	}
	a.doubt(t.ID, false)
	switch {
	case got.Accessor == "" && secret == "":
		return t, "", nil // this Consul has ACLs disabled
	case got.Subject != identity.Subject{} && got.Subject != req.Subject:
		return t, "", coded(codes.Internal, fmt.Errorf("the identity plugin returned the token of service %q of workload "+
			"%s/%s on node %q for service %q of workload %q: report this to its author", got.Subject.Service,
			got.Subject.Namespace, got.Subject.Workload, got.Subject.Node, t.Service, t.Workload))
	case got.Accessor == "" || secret == "":
		return t, "", coded(codes.Internal,
			errors.New("the identity plugin returned an incomplete token and no error: report this to its author"))
	case got.Accessor == t.ID: // the ledger has this accessor already
		t.Accessor = t.ID
		return t, secret, nil
	default:
		return a.note(ctx, t, got, secret)
	}
}

// outliving returns a context that ends a while after ctx.
func outliving(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(grace, cancel) })
	return longer, func() {
		stop()
		cancel()
	}
}

// unanswered reports whether Consul may still make the token despite the error.
func unanswered(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Unknown, codes.Internal:
		return true
	default:
		return false
	}
}

// doubt records whether a request for a token may still be on its way.
func (a *Authority) doubt(id string, is bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if is {
		a.doubtful[id] = true
	} else {
		delete(a.doubtful, id)
	}
}

func (a *Authority) inDoubt(id string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.doubtful[id]
}

// note records the accessor of a token from a login. If that fails, the token is revoked, because nobody would
// know of it.
func (a *Authority) note(ctx context.Context, t claim.Token, got identity.Token, secret string) (claim.Token, string,
	error,
) {
	t.Accessor, t.ExpiresAt = got.Accessor, got.ExpiresAt
	result, err := cluster.Apply(ctx, a.Ledger, &command.PutToken{Token: t})
	if err == nil {
		return result.Token, secret, nil
	}
	err = fmt.Errorf("record its accessor: %w", ledgerError(err))
	undoing, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	if _, undoErr := a.end(undoing, t, secret); undoErr != nil {
		a.Log.Warn("a token that was issued could be neither recorded nor revoked", "workload", t.Workload, "service",
			t.Service,
			"accessor", t.Accessor, "ends", t.ExpiresAt, "error", undoErr)
	}
	return t, "", err
}

// subject says whom a token is for, as in Consul's description and the JWT.
func (a *Authority) subject(ctx context.Context, t claim.Token) (identity.Subject, error) {
	cluster, err := a.clusterID(ctx)
	return identity.Subject{
		Cluster: cluster, Node: t.Node, Namespace: t.Workload.Namespace, Workload: t.Workload.ID, Service: t.Service,
	}, err
}

// orphaned returns why a token's workload does not need it any more, or "".
func orphaned(tx *state.ReadTx, t *claim.Token) (why string, err error) {
	w, err := tx.Workload(t.Workload)
	switch {
	case errors.Is(err, claim.ErrWorkloadNotFound):
		return fmt.Sprintf("workload %q is not known any more", t.Workload), nil
	case err != nil:
		return "", err
	case t.BelongsTo(w):
		return "", nil
	case w.Status != claim.Running:
		return fmt.Sprintf("workload %q has ended", t.Workload), nil
	case w.Node != t.Node:
		return fmt.Sprintf("workload %q runs on node %q, not on node %q", t.Workload, w.Node, t.Node), nil
	default:
		return fmt.Sprintf("workload %q was started again since", t.Workload), nil
	}
}
