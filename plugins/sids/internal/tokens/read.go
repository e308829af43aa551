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

// Read is identity.Identity's. It takes the answer of whichever server the agent
// asks, the leader or not, since that is whom the agent asks when the token is used.
// Where that server does not know the token the leader is asked: a server that has
// just been started must not let a live token pass for one that is gone.
func (i *Issuer) Read(ctx context.Context, c service.Consul, secret string) (identity.Token, error) {
	stale := reading(ctx)
	stale.AllowStale = true
	token, err := i.self(ctx, c, secret, stale)
	if status.Code(err) == codes.NotFound {
		if _, err := i.self(ctx, c, secret, consistent(ctx)); err != nil {
			return identity.Token{}, err
		}
		return identity.Token{}, status.Errorf(codes.Unavailable, "read a token by its secret on Consul %q (%s): the agent does not know the token yet", c.Name, c.Address)
	}
	if err != nil {
		return identity.Token{}, err
	}
	return toToken(token.AccessorID, token.Description, token.CreateTime, token.ExpirationTime), nil
}

// self reads the token that a secret is of. Any token may read itself, so that a
// refusal says that there is none: NotFound.
func (i *Issuer) self(ctx context.Context, c service.Consul, secret string, options *api.QueryOptions) (*api.ACLToken, error) {
	const what = "read a token by its secret"
	if secret == "" {
		return nil, status.Errorf(codes.InvalidArgument, "%s on Consul %q: there is no secret", what, c.Name)
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

// List is identity.Identity's.
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
	for _, e := range entries {
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

// needsNone says whether a call failed since Consul has ACLs disabled: then there are no
// tokens, and services need none. Consul is asked where the plugin has no token that
// could have failed.
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
	return errors.As(err, &answer) && answer.Code == http.StatusUnauthorized && strings.Contains(answer.Body, "ACL support disabled")
}
