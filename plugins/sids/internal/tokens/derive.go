package tokens

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"github.com/hashicorp/consul/api"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/plugins/internal/consul"
	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/sdk/service"
)

// Derive implements identity.Identity.
func (i *Issuer) Derive(ctx context.Context, c service.Consul, req identity.DeriveRequest) (identity.Token, string,
	error,
) {
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
	if token.AccessorID == "" || token.SecretID == "" {
		return identity.Token{}, "", status.Errorf(codes.Internal,
			"get a token for the service %q on Consul %q (%s): the answer has no accessor or no secret", req.Subject.Service, c.Name, c.Address)
	}
	return toToken(token.AccessorID, token.Description, token.CreateTime, token.ExpirationTime), token.SecretID, nil
}

// mint makes the token whose accessor is the request's id, or returns the one that an earlier attempt made.
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
		if wrong := checkSubject(made, req.Subject); wrong != nil || made.AccessorID != req.ID {
			return nil, status.Errorf(codes.Internal, "%s on Consul %q (%s): it answered with another token than it was asked for: %v", what,
				c.Name, c.Address, wrong)
		}
		return made, nil
	}
	if mayExist(err) {
		if token, _, readErr := client.ACL().TokenRead(req.ID, reading(ctx)); readErr == nil {
			if err := checkSubject(token, req.Subject); err != nil {
				return nil, status.Errorf(codes.AlreadyExists, "%s on Consul %q: the token %s is there and %v", what, c.Name, req.ID, err)
			}
			return token, nil
		}
	}
	return nil, i.privilegedError(err, c, what)
}

// mayExist reports whether Consul may have refused a new token because its accessor is taken. Consul has no code for
// that, and several texts: "already in use", and "immutable" if two creations race.
func mayExist(err error) bool {
	var answer api.StatusError
	return errors.As(err, &answer) && answer.Code == http.StatusInternalServerError &&
		!strings.Contains(answer.Body, "leader")
}

// checkSubject checks that a token belongs to a subject.
func checkSubject(token *api.ACLToken, s identity.Subject) error {
	if !describable(s) || subjectOf(token.Description) != s {
		return fmt.Errorf("belongs to another service: %q", token.Description)
	}
	return checkIdentity(token, s.Service)
}

// checkIdentity checks that a token is local and has exactly the one service identity.
func checkIdentity(token *api.ACLToken, service string) error {
	only := consul.Present(token.ServiceIdentities)
	switch {
	case len(only) != 1 || only[0].ServiceName != service:
		return fmt.Errorf("does not have exactly the identity of the service %q", service)
	case len(token.Policies)+len(token.Roles)+len(token.NodeIdentities)+len(token.TemplatedPolicies) > 0:
		return errors.New("has more than a service identity")
	case !token.Local:
		return errors.New("is global")
	}
	return nil
}

// privilegedError is the error of a call with the plugin's own token. It names the token's file.
func (i *Issuer) privilegedError(err error, c service.Consul, what string) error {
	mapped := consul.Error(err, c, "%s", what)
	if status.Code(mapped) == codes.PermissionDenied {
		return status.Errorf(codes.PermissionDenied,
			"%s: the token in %s (%s) must be known to Consul and have the policy acl = \"write\"",
			status.Convert(mapped).Message(), key(c.Name), i.Get().tokenFiles[c.Name])
	}
	return mapped
}

// login exchanges the host's JWT for a token. A wrong token is revoked at once.
func (i *Issuer) login(ctx context.Context, c service.Consul, req identity.DeriveRequest) (*api.ACLToken, error) {
	what := fmt.Sprintf("log in by the auth method %q for the service %q", c.AuthMethod, req.Subject.Service)
	if req.JWT == "" {
		return nil, status.Errorf(codes.InvalidArgument, "%s on Consul %q: the request has no JWT", what, c.Name)
	}
	client, err := i.pool.Client(c, "")
	if err != nil {
		return nil, err
	}
	if err := i.admit(ctx, c, what); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, i.callTimeout)
	defer cancel()
	params := &api.ACLLoginParams{AuthMethod: c.AuthMethod, BearerToken: req.JWT, Meta: metadata(req)}
	token, _, err := client.ACL().Login(params, writing(ctx))
	if consul.Answered(err, http.StatusForbidden) {
		// A leader that was just elected may not have read the auth method or its rules yet. It answers no consistent reads.
		if _, _, err = client.ACL().TokenReadSelf(consistent(ctx)); err == nil || consul.Answered(err, http.StatusForbidden) {
			token, _, err = client.ACL().Login(params, writing(ctx))
		}
	}
	if err != nil {
		return nil, loginError(err, c, what)
	}
	if wrong := checkLogin(token, req.Subject.Service); wrong != nil {
		refused := status.Errorf(codes.FailedPrecondition, "%s on Consul %q: the token that it gave %v", what, c.Name, wrong)
		if err := i.logout(ctx, c, token.SecretID); err != nil {
			return nil, status.Errorf(codes.Internal, "%s; and it could not be revoked: %s",
				status.Convert(refused).Message(), status.Convert(err).Message())
		}
		return nil, refused
	}
	return token, nil
}

// checkLogin checks that a login's token expires: if its secret is lost on the way, it can be revoked only by
// someone with another token.
func checkLogin(token *api.ACLToken, service string) error {
	if err := checkIdentity(token, service); err != nil {
		return fmt.Errorf("%w: check the auth method's binding rules and its TokenLocality", err)
	}
	if token.ExpirationTime == nil {
		return errors.New("never ends: set the auth method's MaxTokenTTL")
	}
	return nil
}

// loginError distinguishes faults of the JWT or the auth method from a Consul in trouble, because Consul answers
// 500 to all of them.
func loginError(err error, c service.Consul, what string) error {
	mapped := consul.Error(err, c, "%s", what)
	text := status.Convert(mapped).Message()
	var answer api.StatusError
	switch {
	case !errors.As(err, &answer):
		return mapped
	case answer.Code == http.StatusForbidden && strings.Contains(answer.Body, "auth method"):
		return status.Errorf(codes.FailedPrecondition,
			"%s: create the auth method, or name another in the agent's consul block", text)
	case answer.Code == http.StatusForbidden, strings.Contains(answer.Body, "invalid bind name"):
		return status.Errorf(codes.PermissionDenied,
			"%s: no binding rule of the auth method gives this workload a service identity", text)
	case answer.Code == http.StatusInternalServerError && refusesJWT(answer.Body):
		return status.Errorf(codes.Unauthenticated,
			"%s: check the auth method's keys, issuer and audience, and the clocks of this host and of Consul's servers", text)
	}
	return mapped
}

// refusesJWT recognises Consul's texts for a JWT that it will never accept. Its error for keys that it could not
// fetch begins in the same way.
func refusesJWT(body string) bool {
	if strings.Contains(body, "fetching keys") {
		return false
	}
	for _, text := range []string{
		"error verifying token", "error parsing token", "no known key", "error validating claims",
		"no issue time", "failed to unmarshal claims", "error converting claim", "audience",
	} {
		if strings.Contains(body, text) {
			return true
		}
	}
	return false
}

var (
	uuid = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
	// serviceName matches what Consul accepts as a service identity.
	serviceName = regexp.MustCompile(`^[a-z0-9]([a-z0-9_-]{0,254}[a-z0-9])?$`)
	minted      = regexp.MustCompile(`^_pannier_si \[([^][]+)\] \[([^][]+)\] \[([^][/]+)/([^][]+)\] \[([^][]+)\]$`)
)

// checkRequest refuses what Consul would refuse with a code that is retried, and what a description could not
// represent.
func checkRequest(req identity.DeriveRequest) error {
	if !uuid.MatchString(req.ID) {
		return status.Errorf(codes.InvalidArgument, "derive a token: the id %q is not a UUID in lower case", req.ID)
	}
	if !serviceName.MatchString(req.Subject.Service) {
		return status.Errorf(codes.InvalidArgument,
			"derive a token for the service %q: Consul accepts service identities of lower case letters, digits, - and _, with a letter or digit at both ends", req.Subject.Service)
	}
	if !describable(req.Subject) {
		return status.Errorf(codes.InvalidArgument,
			"derive a token for %q: a name is empty, or has a bracket or (a namespace) a slash in it", describe(req.Subject))
	}
	return nil
}

// describable reports whether subjectOf gets a subject back from its description.
func describable(s identity.Subject) bool {
	for _, name := range []string{s.Cluster, s.Node, s.Namespace, s.Workload, s.Service} {
		if name == "" || strings.ContainsAny(name, "[]") {
			return false
		}
	}
	return !strings.Contains(s.Namespace, "/")
}

// describe returns the description of a minted token.
func describe(s identity.Subject) string {
	return fmt.Sprintf("_pannier_si [%s] [%s] [%s/%s] [%s]", s.Cluster, s.Node, s.Namespace, s.Workload, s.Service)
}

// loginPrefix is the prefix of Consul's description of a token from a login. The login's metadata follow as JSON.
const loginPrefix = "token created via login: "

// The metadata of a login.
const (
	metaID        = "pannier_id"
	metaCluster   = "pannier_cluster"
	metaNode      = "pannier_node"
	metaNamespace = "pannier_namespace"
	metaWorkload  = "pannier_workload"
	metaService   = "pannier_service"
)

func metadata(req identity.DeriveRequest) map[string]string {
	s := req.Subject
	return map[string]string{
		metaID: req.ID, metaCluster: s.Cluster, metaNode: s.Node,
		metaNamespace: s.Namespace, metaWorkload: s.Workload, metaService: s.Service,
	}
}

// subjectOf parses a token's description, of either kind. The subject of a token that is not Pannier's is empty.
func subjectOf(description string) identity.Subject {
	if m := minted.FindStringSubmatch(description); m != nil {
		return identity.Subject{Cluster: m[1], Node: m[2], Namespace: m[3], Workload: m[4], Service: m[5]}
	}
	text, login := strings.CutPrefix(description, loginPrefix)
	var meta map[string]string
	if !login || json.Unmarshal([]byte(text), &meta) != nil {
		return identity.Subject{}
	}
	return identity.Subject{
		Cluster: meta[metaCluster], Node: meta[metaNode], Namespace: meta[metaNamespace],
		Workload: meta[metaWorkload], Service: meta[metaService],
	}
}
