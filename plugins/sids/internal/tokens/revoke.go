package tokens

import (
	"context"
	"net/http"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/plugins/internal/consul"
	"github.com/pannier/pannier/sdk/service"
)

// Revoke implements identity.Identity. If the Consul has an auth method, the token is revoked with its own secret;
// a minted token, or one whose secret is unknown, is revoked with the plugin's token.
func (i *Issuer) Revoke(ctx context.Context, c service.Consul, accessor, secret string) error {
	err := i.revoke(ctx, c, accessor, secret)
	if i.needsNone(ctx, c, err) {
		return nil
	}
	return err
}

func (i *Issuer) revoke(ctx context.Context, c service.Consul, accessor, secret string) error {
	if c.AuthMethod == "" || secret == "" {
		return i.end(ctx, c, accessor)
	}
	err := i.logout(ctx, c, secret)
	if status.Code(err) == codes.PermissionDenied && accessor != "" {
		return i.end(ctx, c, accessor) // it was minted before the auth method was configured
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

// end revokes a token by its accessor, with the plugin's own token.
func (i *Issuer) end(ctx context.Context, c service.Consul, accessor string) error {
	const what = "revoke a token"
	if !uuid.MatchString(accessor) {
		return status.Errorf(codes.InvalidArgument, "%s on Consul %q: the accessor %q is not a UUID in lower case", what,
			c.Name, accessor)
	}
	client, err := i.privileged(c, what+" by its accessor "+accessor)
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
		_, err = client.ACL().TokenDelete(accessor, writing(asking))
		if !consul.Answered(err, http.StatusNotFound) {
			return i.privilegedError(err, c, what)
		}
		// A leader that was just elected answers so about tokens that it has not read yet. It answers no consistent reads.
		switch _, _, err = client.ACL().TokenRead(accessor, consistent(asking)); {
		case consul.NoSuchToken(err):
			return nil
		case err != nil:
			return i.privilegedError(err, c, what)
		}
	}
}
