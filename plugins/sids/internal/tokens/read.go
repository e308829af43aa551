package tokens

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/plugins/internal/consul"
	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/sdk/service"
)

// Read implements identity.Identity. It uses the answer of whichever server the agent asks, because the agent asks
// that server too when the token is used. Only if that server does not know the token is the leader asked: a
// server that has just started must not make a valid token look revoked.
func (i *Issuer) Read(ctx context.Context, c service.Consul, secret string) (identity.Token, error) {
	stale := reading(ctx)
	stale.AllowStale = true
	token, err := i.self(ctx, c, secret, stale)
	if status.Code(err) == codes.NotFound {
		if _, err := i.self(ctx, c, secret, consistent(ctx)); err != nil {
			return identity.Token{}, err
		}
		return identity.Token{}, status.Errorf(codes.Unavailable,
			"read a token by its secret on Consul %q (%s): the agent does not know the token yet", c.Name, c.Address)
	}
	if err != nil {
		return identity.Token{}, err
	}
	return toToken(token.AccessorID, token.Description, token.CreateTime, token.ExpirationTime), nil
}

// self reads the token of a secret. Any token may read itself, so a refusal means that the token does not exist:
// NotFound.
func (i *Issuer) self(ctx context.Context, c service.Consul, secret string, options *api.QueryOptions) (*api.ACLToken,
	error,
) {
	const what = "read a token by its secret"
	if secret == "" {
		return nil, status.Errorf(codes.InvalidArgument, "%s on Consul %q: the request has no secret", what, c.Name)
	}
	client, err := i.pool.Client(c, secret)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, i.callTimeout)
	defer cancel()
	token, _, err := client.ACL().TokenReadSelf(options.WithContext(ctx))
	if err == nil {
		return token, nil
	}
	mapped := consul.Error(err, c, what)
	if consul.Answered(err, http.StatusForbidden) || consul.Answered(err, http.StatusNotFound) {
		return nil, status.Error(codes.NotFound, status.Convert(mapped).Message())
	}
	return nil, mapped
}

// List implements identity.Identity.
func (i *Issuer) List(ctx context.Context, c service.Consul, cluster string) ([]identity.Token, error) {
	tokens, err := i.list(ctx, c, cluster)
	if i.needsNone(ctx, c, err) {
		return nil, nil
	}
	return tokens, err
}

func (i *Issuer) list(ctx context.Context, c service.Consul, cluster string) ([]identity.Token, error) {
	const what = "list the tokens"
	client, err := i.privileged(c, what)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, i.callTimeout)
	defer cancel()
	entries, _, err := client.ACL().TokenList(reading(ctx))
	if err != nil {
		return nil, i.privilegedError(err, c, what)
	}
	var out []identity.Token
	for _, e := range consul.Present(entries) {
		token := toToken(e.AccessorID, e.Description, e.CreateTime, e.ExpirationTime)
		if token.Subject.Cluster == cluster && cluster != "" {
			out = append(out, token)
		}
	}
	return out, nil
}

func toToken(accessor, description string, created time.Time, expires *time.Time) identity.Token {
	out := identity.Token{Accessor: accessor, Subject: subjectOf(description), CreatedAt: created}
	if expires != nil {
		out.ExpiresAt = *expires
	}
	return out
}

// needsNone reports whether a call failed because Consul has ACLs disabled: then there are no tokens, and services need
// none. If the plugin failed because it has no token of its own, Consul is asked.
func (i *Issuer) needsNone(ctx context.Context, c service.Consul, err error) bool {
	switch status.Code(err) {
	case codes.Unauthenticated, codes.FailedPrecondition:
	default:
		return false
	}
	client, err := i.pool.Client(c, "")
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, i.callTimeout)
	defer cancel()
	_, _, err = client.ACL().TokenReadSelf(reading(ctx))
	var answer api.StatusError
	return errors.As(err, &answer) && answer.Code == http.StatusUnauthorized &&
		strings.Contains(answer.Body, "ACL support disabled")
}
