package tokens

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/hashicorp/consul/api"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/plugins/internal/consul"
	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/sdk/service"
)

// Derive is identity.Identity's.
func (i *Issuer) Derive(ctx context.Context, c service.Consul, req identity.DeriveRequest) (identity.Token, string, error) {
	if err := checkRequest(req); err != nil {
		return identity.Token{}, "", err
	}
	derive := i.mint
	if c.AuthMethod != "" {
		derive = i.login
	}
	token, err := derive(ctx, c, req)
	if err != nil {
		if i.needsNone(ctx, c, err) {
			return identity.Token{}, "", nil
		}
		return identity.Token{}, "", err
	}
	return toToken(token.AccessorID, token.Description, token.CreateTime, token.ExpirationTime), token.SecretID, nil
}

// mint makes the token whose accessor is the request's id. One that an earlier try has
// made is given again.
func (i *Issuer) mint(ctx context.Context, c service.Consul, req identity.DeriveRequest) (*api.ACLToken, error) {
	what := fmt.Sprintf("mint a token for the service %q", req.Subject.Service)
	client, err := i.privileged(c, what)
	if err != nil {
		return nil, err
	}
	if err := i.admit(ctx, c, what); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, i.callTimeout)
	defer cancel()
	made, _, err := client.ACL().TokenCreate(&api.ACLToken{
		AccessorID:        req.ID,
		Description:       describe(req.Subject),
		ServiceIdentities: []*api.ACLServiceIdentity{{ServiceName: req.Subject.Service}},
		Local:             true,
	}, writing(ctx))
	if err == nil {
		return made, nil
	}
	if mayExist(err) {
		if token, _, readErr := client.ACL().TokenRead(req.ID, reading(ctx)); readErr == nil {
			return token, checkMinted(token, c, req)
		}
	}
	return nil, i.privilegedError(err, c, what)
}

// mayExist says whether Consul may have refused a new token since its accessor is
// taken. It has no code of its own for that, and its texts are several: "already in
// use", and "immutable" where two creations race.
func mayExist(err error) bool {
	var answer api.StatusError
	return errors.As(err, &answer) && answer.Code == http.StatusInternalServerError && !strings.Contains(answer.Body, "leader")
}

// checkMinted refuses a token that has the accessor and is not what was asked for.
func checkMinted(token *api.ACLToken, c service.Consul, req identity.DeriveRequest) error {
	if token.Description != describe(req.Subject) {
		return status.Errorf(codes.AlreadyExists, "mint a token for the service %q on Consul %q: the token %s is another: %q",
			req.Subject.Service, c.Name, req.ID, token.Description)
	}
	if err := checkIdentity(token, req.Subject.Service); err != nil {
		return status.Errorf(codes.AlreadyExists, "mint a token for the service %q on Consul %q: the token %s is there and %v",
			req.Subject.Service, c.Name, req.ID, err)
	}
	return nil
}

// checkIdentity wants a token that is local and has the one service identity, and
// nothing else.
func checkIdentity(token *api.ACLToken, service string) error {
	switch {
	case len(token.ServiceIdentities) != 1 || token.ServiceIdentities[0].ServiceName != service:
		return fmt.Errorf("has not the one identity of the service %q", service)
	case len(token.Policies)+len(token.Roles)+len(token.NodeIdentities)+len(token.TemplatedPolicies) > 0:
		return errors.New("has more than a service identity")
	case !token.Local:
		return errors.New("is global")
	}
	return nil
}

// privilegedError is the error of a call that was made with the plugin's own token. It
// names the token's file.
func (i *Issuer) privilegedError(err error, c service.Consul, what string) error {
	mapped := consul.Error(err, c, "%s", what)
	if status.Code(mapped) == codes.PermissionDenied {
		return status.Errorf(codes.PermissionDenied, "%s: the token in %s (%s) must be known to Consul and have the policy acl = \"write\"",
			status.Convert(mapped).Message(), key(c.Name), i.settings.Load().tokenFiles[c.Name])
	}
	return mapped
}
