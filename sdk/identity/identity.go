// Package identity is the kind "identity": a plugin that gets tokens for workloads' services from an issuer, such as
// Consul. The Consul of a call is the agent's consul block or, for another issuer, has the name of the agent's identity
// block and nothing else: the plugin's own configuration says how to reach that.
package identity

import (
	"context"
	"time"

	"github.com/pannier/pannier/sdk/service"
)

// Kind is the kind's protocol with its version.
const Kind = "identity.v1"

// Identity is the interface of a plugin of the kind "identity". The host calls it through the same interface.
//
// Errors are gRPC status errors. Unavailable, DeadlineExceeded and ResourceExhausted are retried, all others are
// final. An error that is no status reaches the host as Internal. Every call may be repeated with the same
// arguments, at any time and by another process of the same plugin. An error must not contain a secret.
type Identity interface {
	// Derive returns a token for one service. If it is minted, req.ID becomes its accessor, so that a repeated call
	// returns the same token. It returns neither token nor secret if no token is needed, as for a Consul without ACLs.
	// After InvalidArgument, FailedPrecondition, PermissionDenied and Unauthenticated the host revokes no token: with
	// these codes the call has made none.
	Derive(ctx context.Context, c service.Consul, req DeriveRequest) (token Token, secret string, err error)
	// Read looks a token up by its secret, at the issuer as this node reaches it, such as its Consul agent. NotFound:
	// that does not know it (yet), or no more.
	Read(ctx context.Context, c service.Consul, secret string) (Token, error)
	// Revoke ends a token by its accessor and its subject, and returns once the issuer reports that it is gone. It
	// succeeds if the token does not exist. A token from a login can be ended only with its own secret. AlreadyExists: the
	// accessor belongs to a token for another subject, which stands.
	Revoke(ctx context.Context, c service.Consul, t Token, secret string) error
	// List returns all tokens of a Pannier cluster.
	List(ctx context.Context, c service.Consul, cluster string) ([]Token, error)
}

// KeyChecker is an optional part of an Identity: without it the host waits some minutes before it signs with another
// key.
type KeyChecker interface {
	// HasKey reports whether the issuer has the key that signed a JWT. The JWT has expired, so nothing is given for it.
	HasKey(ctx context.Context, c service.Consul, jwt string) (bool, error)
}

// DeriveRequest asks for one token.
type DeriveRequest struct {
	// ID is a UUID that the caller chose and stored before the call.
	ID      string
	Subject Subject
	// JWT has the same content as Subject, signed by the host. It is set for an identity block, and for a Consul with
	// an auth method.
	JWT string
}

// Subject says whom a token is for.
type Subject struct {
	Cluster   string // Pannier's cluster
	Node      string
	Namespace string
	Workload  string
	Service   string // the one service that the token is for
}

// Token is what the issuer knows about a token, except its secret.
type Token struct {
	Accessor  string
	Subject   Subject
	CreatedAt time.Time
	ExpiresAt time.Time // zero: valid until it is revoked
}
