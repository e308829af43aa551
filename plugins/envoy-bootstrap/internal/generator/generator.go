// Package generator implements the bootstrap kind for Envoy and Consul: it waits for a proxy's registration, reads
// from the local Consul agent what the bootstrap needs, and lets package envoy make the bootstrap.
//
// It makes as few requests as possible: one if the host knows the xDS server's address and CA, and one more for
// each that it does not know.
//
// Invariants: nothing that Consul or a file contains is kept between two calls, since it may change; only
// connections are. No token is in an error, in the log or in an argument of a program.
package generator

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/hashicorp/consul/api"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/plugins/envoy-bootstrap/internal/envoy"
	"github.com/pannier/pannier/plugins/internal/consul"
	"github.com/pannier/pannier/sdk/bootstrap"
	"github.com/pannier/pannier/sdk/service"
)

const (
	// defaultWait bounds the wait for a registration if the request has no bound.
	defaultWait = time.Minute
	// firstPause and lastPause bound the pause between two requests to Consul.
	firstPause = 100 * time.Millisecond
	lastPause  = 2 * time.Second
)

// Generator is a bootstrap plugin for Envoy proxies that are registered in Consul. It is safe for concurrent use.
type Generator struct {
	log   hclog.Logger
	pool  *consul.Pool
	reach func(ctx context.Context, s envoy.Server) error
}

var _ bootstrap.Bootstrap = (*Generator)(nil)

// New makes a Generator.
func New(log hclog.Logger) *Generator {
	return &Generator{log: log, pool: consul.NewPool(), reach: reach}
}

// Close closes the connections to Consul. It may be repeated.
func (g *Generator) Close() error { return g.pool.Close() }

// Generate makes the bootstrap of a sidecar or a gateway. InvalidArgument: the request or the proxy's
// configuration is wrong, or the service is not a proxy. FailedPrecondition: a file cannot be used, or the Consul
// agent does not serve xDS. NotFound: the proxy was not registered within the wait. PermissionDenied: the token
// may not read the registration. Unavailable and ResourceExhausted: Consul did not answer within the wait.
func (g *Generator) Generate(ctx context.Context, c service.Consul, req bootstrap.Request) (out bootstrap.Result,
	err error,
) {
	if err := validate(req); err != nil {
		return out, err
	}
	p, err := g.await(ctx, c, req)
	if err == nil {
		out.Bootstrap, out.Files, err = envoy.Bootstrap(ctx, p)
	}
	if err != nil {
		return out, about(req.ProxyID, err)
	}
	return out, nil
}

func validate(req bootstrap.Request) error {
	if req.ProxyID == "" {
		return status.Error(codes.InvalidArgument, "make a bootstrap: the request names no proxy")
	}
	if req.Dir != "" && !filepath.IsAbs(req.Dir) {
		return status.Errorf(codes.InvalidArgument, "make the bootstrap of proxy %q: the directory %q is no absolute path",
			req.ProxyID, req.Dir)
	}
	for what, b := range map[string]bootstrap.Bind{"admin": req.Admin, "ready": req.Ready} {
		socket := b.Socket()
		switch {
		case b == (bootstrap.Bind{}):
		case socket != "" && b.Port == 0:
			if !filepath.IsAbs(socket) || len(socket) > maxSocket {
				return status.Errorf(codes.InvalidArgument,
					"make the bootstrap of proxy %q: the %s socket %q is no absolute path of up to %d bytes: "+
						`use shorter names, another secrets_dir, or connect { admin = "none" }`, req.ProxyID, what, socket, maxSocket)
			}
		case socket != "" || b.Port < 1 || b.Port > 65535:
			return status.Errorf(codes.InvalidArgument, "make the bootstrap of proxy %q: the %s port is %d, want 1 to 65535",
				req.ProxyID, what, b.Port)
		}
	}
	return nil
}

// maxSocket is the longest path of a unix socket, in bytes (unix(7)).
const maxSocket = 107

// about adds to an error whose bootstrap it concerns.
func about(proxyID string, err error) error {
	s := status.Convert(err)
	return status.Errorf(s.Code(), "make the bootstrap of proxy %q: %s", proxyID, s.Message())
}

// await retries until there is an answer that a retry would not change, or the wait is over.
func (g *Generator) await(ctx context.Context, c service.Consul, req bootstrap.Request) (envoy.Proxy, error) {
	wait := req.Wait
	if wait <= 0 {
		wait = defaultWait
	}
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval, pauses.MaxInterval = firstPause, lastPause
	pauses.RandomizationFactor, pauses.Multiplier = 0.2, 2
	var last error
	p, err := backoff.Retry(waiting, func() (envoy.Proxy, error) {
		p, err := g.proxy(waiting, c, req)
		// The end of the wait says less than the error before it.
		if err != nil && (last == nil || waiting.Err() == nil) {
			last = err
		}
		if !passing(err) {
			return p, backoff.Permanent(err)
		}
		return p, err
	}, backoff.WithBackOff(pauses), backoff.WithMaxElapsedTime(0))
	switch {
	case err == nil:
		return p, nil
	case ctx.Err() != nil:
		return p, status.Errorf(status.FromContextError(ctx.Err()).Code(), "stopped while waiting for Consul: %s",
			status.Convert(last).Message())
	case passing(last):
		return p, status.Errorf(status.Code(last), "not within %s: %s", wait, status.Convert(last).Message())
	}
	return p, last
}

// errNotYet marks the errors of a registration or a token that is not visible yet.
var errNotYet = errors.New("not there yet")

// notYet is an error, with its own code, that passes when Consul has caught up.
type notYet struct{ error }

func (e notYet) GRPCStatus() *status.Status { return status.Convert(e.error) }
func (e notYet) Is(target error) bool       { return target == errNotYet }
func (e notYet) Unwrap() error              { return e.error }

// passing reports whether a retry may succeed.
func passing(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.ResourceExhausted, codes.DeadlineExceeded:
		return true
	}
	return errors.Is(err, errNotYet)
}

// unknownToken reports whether Consul answered that the token does not exist. A new token is unknown to an agent for a
// moment.
func unknownToken(err error) bool {
	var answer api.StatusError
	return errors.As(err, &answer) && answer.Code == 403 && strings.Contains(answer.Body, "ACL not found")
}
