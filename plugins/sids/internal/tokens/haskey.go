package tokens

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/hashicorp/consul/api"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/plugins/internal/consul"
	"github.com/pannier/pannier/sdk/service"
)

// HasKey implements identity.KeyChecker. Consul verifies a JWT's signature before its claims, so its error for one that
// has expired reports whether it has the key. It fetches the keys of a JWKSURL only for a JWT of a key that it does not
// know, so it gets one of these first: what it answers afterwards is by what the URL has now.
func (i *Issuer) HasKey(ctx context.Context, c service.Consul, question string) (bool, error) {
	what := fmt.Sprintf("ask the auth method %q for a key", c.AuthMethod)
	if c.AuthMethod == "" {
		return false, status.Errorf(codes.Unimplemented, "%s: the block %q has no auth_method", what, c.Name)
	}
	client, err := i.pool.Client(c, "")
	if err != nil {
		return false, err
	}
	nobodys, err := UnknownJWT()
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, i.callTimeout)
	defer cancel()
	known, err := knows(ctx, client, c, nobodys)
	if err == nil && known {
		err = errors.New("it accepts the signature of a key that nobody has")
	}
	if err == nil {
		known, err = knows(ctx, client, c, question)
	}
	if err != nil {
		err = consul.Error(err, c, "%s", what)
		if i.needsNone(ctx, c, err) {
			return false, status.Errorf(codes.Unimplemented, "%s: this Consul has ACLs disabled", what)
		}
		return false, err
	}
	return known, nil
}

// knows logs in with a JWT that has expired.
func knows(ctx context.Context, client *api.Client, c service.Consul, question string) (bool, error) {
	token, _, err := client.ACL().Login(&api.ACLLoginParams{AuthMethod: c.AuthMethod, BearerToken: question}, writing(ctx))
	var answer api.StatusError
	switch {
	case err == nil:
		_, _ = client.ACL().Logout((&api.WriteOptions{Token: token.SecretID}).WithContext(ctx))
		return false, errors.New("it gave a token for a JWT that has expired")
	case !errors.As(err, &answer):
		return false, err
	case strings.Contains(answer.Body, "error validating claims"):
		return true, nil
	case refusesJWT(answer.Body):
		return false, nil
	}
	return false, err
}

// UnknownJWT returns a JWT of a key that is thrown away.
func UnknownJWT() (string, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", err
	}
	private := jose.JSONWebKey{Key: key, KeyID: rand.Text()}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: private}, nil)
	if err != nil {
		return "", err
	}
	return jwt.Signed(signer).Claims(jwt.Claims{IssuedAt: jwt.NewNumericDate(time.Now())}).Serialize()
}
