// Command issuer is a small identity plugin without a Consul, for tests: it believes the cluster's JWT and gives a
// random secret, kept in a file of its folder until it is revoked.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/internal/atomicfile"
	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/sdk/service"
)

func main() { sdk.Main(sdk.Info{Name: "issuer", Version: "0.1.0"}, identity.Plugin(&issuer{})) }

// config is the plugin's config block.
type config struct {
	// Dir has a file for each identity, by its accessor.
	Dir string `json:"dir"`
	// JWKS is where the keys are that verify the cluster's JWTs.
	JWKS string `json:"jwks"`
}

// issued is an identity, as its file has it.
type issued struct {
	identity.Token
	Secret string
}

type issuer struct{ config }

func (i *issuer) Validate(_ context.Context, raw []byte) error { return parse(raw, &config{}) }

func (i *issuer) Configure(_ context.Context, raw []byte) error { return parse(raw, &i.config) }

func parse(raw []byte, into *config) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return nil
}

// Derive gives the subject of the JWT its identity. The same id gets the same secret again.
func (i *issuer) Derive(ctx context.Context, c service.Consul, req identity.DeriveRequest) (
	identity.Token, string, error,
) {
	if err := i.verify(ctx, c.Name, req); err != nil {
		return identity.Token{}, "", status.Error(codes.PermissionDenied, err.Error())
	}
	path := filepath.Join(i.Dir, req.ID)
	if had, err := read(path); err == nil {
		return had.Token, had.Secret, nil
	}
	made := issued{
		Token:  identity.Token{Accessor: req.ID, Subject: req.Subject, CreatedAt: time.Now().UTC()},
		Secret: c.Name + ":" + rand.Text(),
	}
	raw, err := json.Marshal(made)
	if err == nil {
		err = atomicfile.WriteFile(path, raw)
	}
	return made.Token, made.Secret, err
}

func (i *issuer) verify(ctx context.Context, audience string, req identity.DeriveRequest) error {
	ask, err := http.NewRequestWithContext(ctx, http.MethodGet, i.JWKS, nil)
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

func (i *issuer) Read(_ context.Context, _ service.Consul, secret string) (identity.Token, error) {
	all, err := i.all()
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

func (i *issuer) Revoke(_ context.Context, _ service.Consul, accessor, _ string) error {
	err := os.Remove(filepath.Join(i.Dir, filepath.Base(accessor)))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return err
}

func (i *issuer) List(_ context.Context, _ service.Consul, cluster string) (tokens []identity.Token, err error) {
	all, err := i.all()
	for _, had := range all {
		if had.Subject.Cluster == cluster {
			tokens = append(tokens, had.Token)
		}
	}
	return tokens, err
}

func (i *issuer) all() (all []issued, err error) {
	entries, err := os.ReadDir(i.Dir)
	for _, entry := range entries {
		if had, err := read(filepath.Join(i.Dir, entry.Name())); err == nil { // it may just have been revoked
			all = append(all, had)
		}
	}
	return all, err
}

func read(path string) (had issued, err error) {
	raw, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(raw, &had)
	}
	return had, err
}
