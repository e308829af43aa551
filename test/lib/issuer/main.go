// Command issuer is a small identity plugin without a Consul, for tests: it believes the cluster's JWT and gives a
// random secret, kept in its state until it is revoked. Its metric tells how many there are.
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/sdk/service"
)

func main() { sdk.Main(sdk.Info{Name: "issuer", Version: "0.1.0"}, identity.Plugin(&issuer{})) }

// config is the plugin's config block.
type config struct {
	JWKS string `json:"jwks" required:"true" doc:"the URL of the keys that verify the cluster's JWTs"`
}

// issued is an identity, as its file has it.
type issued struct {
	identity.Token
	Secret string
}

type issuer struct{ sdk.Config[config] }

// Derive gives the subject of the JWT its identity. The same id gets the same secret again.
func (i *issuer) Derive(ctx context.Context, c service.Consul, req identity.DeriveRequest) (
	identity.Token, string, error,
) {
	if err := i.verify(ctx, c.Name, req); err != nil {
		return identity.Token{}, "", status.Error(codes.PermissionDenied, err.Error())
	}
	made := issued{
		Token:  identity.Token{Accessor: req.ID, Subject: req.Subject, CreatedAt: time.Now().UTC()},
		Secret: c.Name + ":" + rand.Text(),
	}
	raw, err := json.Marshal(made)
	if err != nil {
		return identity.Token{}, "", err
	}
	if _, err := sdk.HostState().CompareAndSwap(ctx, req.ID, nil, raw); err != nil {
		return identity.Token{}, "", err
	}
	all, err := i.all(ctx)
	return all[req.ID].Token, all[req.ID].Secret, err
}

func (i *issuer) verify(ctx context.Context, audience string, req identity.DeriveRequest) error {
	ask, err := http.NewRequestWithContext(ctx, http.MethodGet, i.Get().JWKS, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(ask)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var keys jose.JSONWebKeySet
	if err := json.NewDecoder(resp.Body).Decode(&keys); err != nil {
		return err
	}
	token, err := jwt.ParseSigned(req.JWT, []jose.SignatureAlgorithm{jose.ES256})
	if err != nil {
		return err
	}
	var claims jwt.Claims
	if err := token.Claims(keys, &claims); err != nil {
		return err
	}
	return claims.Validate(jwt.Expected{
		AnyAudience: jwt.Audience{audience}, Time: time.Now(),
		Subject: req.Subject.Namespace + "/" + req.Subject.Workload + "/" + req.Subject.Service,
	})
}

func (i *issuer) Read(ctx context.Context, _ service.Consul, secret string) (identity.Token, error) {
	all, err := i.all(ctx)
	for _, had := range all {
		if had.Secret == secret {
			return had.Token, nil
		}
	}
	if err == nil {
		err = status.Error(codes.NotFound, "no identity has this secret")
	}
	return identity.Token{}, err
}

func (i *issuer) Revoke(ctx context.Context, _ service.Consul, t identity.Token, _ string) error {
	if err := sdk.HostState().Delete(ctx, t.Accessor); err != nil {
		return err
	}
	_, err := i.all(ctx)
	return err
}

func (i *issuer) List(ctx context.Context, _ service.Consul, cluster string) (tokens []identity.Token, err error) {
	all, err := i.all(ctx)
	for _, had := range all {
		if had.Subject.Cluster == cluster {
			tokens = append(tokens, had.Token)
		}
	}
	return tokens, err
}

var identities = sdk.NewGauge("identities", "Identities that are not revoked.")

// all returns the identities by accessor.
func (i *issuer) all(ctx context.Context) (map[string]issued, error) {
	accessors, err := sdk.HostState().List(ctx, "")
	if err != nil {
		return nil, err
	}
	all := map[string]issued{}
	for _, accessor := range accessors {
		raw, found, err := sdk.HostState().Get(ctx, accessor)
		if err != nil {
			return nil, err
		}
		if !found {
			continue // it has just been revoked
		}
		var had issued
		if err := json.Unmarshal(raw, &had); err != nil {
			return nil, err
		}
		all[accessor] = had
	}
	identities.Set(float64(len(all)))
	return all, nil
}
