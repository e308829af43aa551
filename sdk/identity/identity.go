// Package identity is the kind "identity": a plugin that gives workloads' services
// their Consul tokens.
package identity

import (
	"context"
	"time"

	"github.com/pannier/pannier/sdk/service"
)

// Kind is the kind's protocol with its version.
const Kind = "identity.v1"

// Identity is what a plugin of the kind "identity" must do. The host calls it
// through the same interface, so one reading serves both sides.
//
// Errors are gRPC status errors: Unavailable, DeadlineExceeded and
// ResourceExhausted are worth another try, all others are final; an error that is no
// status reaches the host as Internal. Every call may be repeated with the same
// arguments, at any time and by another process of the same plugin. No error has a
// secret in it.
type Identity interface {
	// Derive gives a token with one service identity. Where it is minted, req.ID becomes
	// its accessor, so that a repeated call gives the same token. No token and no secret:
	// this Consul has ACLs disabled, and none is needed.
	Derive(ctx context.Context, c service.Consul, req DeriveRequest) (token Token, secret string, err error)
	// Read reads a token back by its secret, from the Consul agent of this node.
	// NotFound: this agent does not know it (yet).
	Read(ctx context.Context, c service.Consul, secret string) (Token, error)
	// Revoke ends a token and returns when Consul says that it is gone; one that is not
	// there is success. What was given by login is ended with its own secret only.
	Revoke(ctx context.Context, c service.Consul, accessor, secret string) error
	// List reads all tokens that a cluster of Pannier's has there.
	List(ctx context.Context, c service.Consul, cluster string) ([]Token, error)
}

// DeriveRequest asks for one token.
type DeriveRequest struct {
	// ID is a UUID that the caller chose, and kept, before the call.
	ID      string
	Subject Subject
	// JWT says the same as Subject, signed by the host; set where the Consul has an
	// auth method.
	JWT string
}

// Subject is whom a token is for.
type Subject struct {
	Cluster   string // Pannier's
	Node      string
	Namespace string
	Workload  string
	Service   string // the one service identity of the token
}

// Token is what Consul knows of a token, but for its secret.
type Token struct {
	Accessor  string
	Subject   Subject
	CreatedAt time.Time
	ExpiresAt time.Time // zero: it lives until it is revoked
}
