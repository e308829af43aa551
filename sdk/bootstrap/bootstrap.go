package bootstrap

import (
	"context"
	"time"

	"github.com/pannier/pannier/sdk/service"
)

// Kind is the kind's protocol with its version.
const Kind = "bootstrap.v1"

// Bootstrap is what a plugin of the kind "bootstrap" must do. The host calls it
// through the same interface, so one reading serves both sides.
//
// Errors are gRPC status errors: Unavailable, DeadlineExceeded and
// ResourceExhausted are worth another try, all others are final; an error that is no
// status reaches the host as Internal.
type Bootstrap interface {
	// Generate waits until the proxy's registration can be seen and makes its bootstrap,
	// Envoy's bootstrap v3 as JSON. The same request and the same registration give the
	// same bytes. FailedPrecondition: the token file cannot be read.
	Generate(ctx context.Context, c service.Consul, req Request) ([]byte, error)
}

// Request asks for one bootstrap.
type Request struct {
	// ProxyID is the proxy's service id in Consul.
	ProxyID string
	// TokenFile holds the token for Consul and for the proxy's xDS stream; empty: none.
	TokenFile string
	// Admin is where the proxy's admin API listens.
	Admin Bind
	// Ready is where the proxy says that it is ready; port 0: nowhere.
	Ready Bind
	// Wait bounds the wait for the registration; 0: 60 s.
	Wait time.Duration
}

// Bind is an address to listen on.
type Bind struct {
	Address string
	Port    int
}
