package tokens

import (
	"context"
	"net/http"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/plugins/internal/consul"
	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/sdk/service"
)

// Revoke implements identity.Identity. If the Consul has an auth method, the token is revoked with its own secret;
// a minted token, or one whose secret is unknown, is revoked with the plugin's token.
func (i *Issuer) Revoke(ctx context.Context, c service.Consul, t identity.Token, secret string) error {
	err := i.revoke(ctx, c, t, secret)
	if i.needsNone(ctx, c, err) {
		return nil
	}
	return err
}

func (i *Issuer) revoke(ctx context.Context, c service.Consul, t identity.Token, secret string) error {
	if c.AuthMethod == "" || secret == "" {
		return i.end(ctx, c, t)
	}
	err := i.logout(ctx, c, secret)
	if status.Code(err) == codes.PermissionDenied && t.Accessor != "" {
		return i.end(ctx, c, t) // it was minted before the auth method was configured
	}
	return err
}

// logout revokes a token from a login. PermissionDenied: it is not from a login.
func (i *Issuer) logout(ctx context.Context, c service.Consul, secret string) error {
	const what = "log out"
	client, err := i.pool.Client(c, secret)
	if err != nil {
		return err
	}
	if err := i.admit(ctx, c, what); err != nil {
		return err
	}
	asking, cancel := context.WithTimeout(ctx, i.callTimeout)
	defer cancel()
	_, err = client.ACL().Logout(writing(asking))
	if !consul.Answered(err, http.StatusForbidden) {
		return consul.Error(err, c, what)
	}
	// Consul refuses a token that does not exist with the same status.
	if _, readErr := i.self(ctx, c, secret, consistent(ctx)); readErr != nil {
		if status.Code(readErr) == codes.NotFound {
			return nil
		}
		return readErr
	}
	return consul.Error(err, c, what)
}

// end revokes a token by its accessor, with the plugin's own token, which may end any token: so it looks first whether
// it is the subject's.
func (i *Issuer) end(ctx context.Context, c service.Consul, t identity.Token) error {
	const what = "revoke a token"
	if !uuid.MatchString(t.Accessor) {
		return status.Errorf(codes.InvalidArgument, "%s on Consul %q: the accessor %q is not a UUID in lower case", what,
			c.Name, t.Accessor)
	}
	client, err := i.privileged(c, what+" by its accessor "+t.Accessor)
	if err != nil {
		if c.AuthMethod != "" && i.Get().tokenFiles[c.Name] == "" {
			return status.Errorf(codes.FailedPrecondition, "%s; without it, the token stays valid until it expires",
				status.Convert(err).Message())
		}
		return err
	}
	if err := i.admit(ctx, c, what); err != nil {
		return err
	}
	asking, cancel := context.WithTimeout(ctx, i.callTimeout)
	defer cancel()
	for {
		// A leader that was just elected answers as if it had no tokens, but no consistent reads.
		found, _, err := client.ACL().TokenRead(t.Accessor, consistent(asking))
		switch {
		case consul.NoSuchToken(err):
			return nil
		case err != nil:
			return i.privilegedError(err, c, what)
		}
		if err := checkSubject(found, t.Subject); err != nil {
			return status.Errorf(codes.AlreadyExists, "%s on Consul %q: the token %s is there and %v", what, c.Name, t.Accessor, err)
		}
		_, err = client.ACL().TokenDelete(t.Accessor, writing(asking))
		if !consul.Answered(err, http.StatusNotFound) {
			return i.privilegedError(err, c, what)
		}
	}
}
