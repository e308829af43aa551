package frontend

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/api"
	frontendv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/frontend/v1"
)

// Plugin serves an implementation: sdk.Main(info, frontend.Plugin(impl)).
func Plugin(impl Frontend) sdk.Plugin {
	s := &server{impl: impl, ended: make(chan struct{})}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return sdk.Plugin{
		Kind: Kind,
		Impl: impl,
		Register: func(r grpc.ServiceRegistrar) {
			frontendv1.RegisterFrontendServiceServer(r, s)
		},
		Finish: s.finish,
		Health: s.health,
	}
}

// finishTimeout bounds how long the end of the process waits for Serve.
const finishTimeout = 30 * time.Second

// host is what every front door of this process has of its host.
var host = sync.OnceValue(func() Host {
	return Host{API: api.NewOver(sdk.DialHost), State: sdk.HostState(), Listen: sdk.Listen}
})

// server adapts an implementation to the protocol.
type server struct {
	frontendv1.UnimplementedFrontendServiceServer
	impl  Frontend
	ctx   context.Context // of Serve
	stop  context.CancelFunc
	ended chan struct{} // closed when Serve has returned

	mu       sync.Mutex
	serving  bool
	draining bool
	err      error // of Serve; read once ended is closed
}

func (s *server) Ready(ctx context.Context, _ *frontendv1.ReadyRequest) (*frontendv1.ReadyResponse, error) {
	if r, ok := sdk.As[Readier](s.impl); ok {
		if err := r.Ready(ctx, host()); err != nil {
			return nil, withCode(err)
		}
	}
	return &frontendv1.ReadyResponse{}, nil
}

// withCode gives an error without a gRPC code the code of the API's call that failed, or else FailedPrecondition.
func withCode(err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	code := codes.FailedPrecondition
	if failed := (*connect.Error)(nil); errors.As(err, &failed) {
		code = codes.Code(failed.Code()) // the numbers are the same
	} else if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		code = status.FromContextError(err).Code()
	}
	return status.Error(code, err.Error())
}

func (s *server) Serve(context.Context, *frontendv1.ServeRequest) (*frontendv1.ServeResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		return nil, status.Error(codes.FailedPrecondition, "the process does not serve any more")
	}
	if !s.serving {
		s.serving = true
		go func() {
			defer close(s.ended)
			s.err = s.run()
		}()
	}
	return &frontendv1.ServeResponse{}, nil
}

// run serves until ctx ends. A panic is an error, as in calls.
func (s *server) run() (err error) {
	defer func() {
		if v := recover(); v != nil {
			sdk.Logger().Error("panic in Serve", "panic", v, "stack", string(debug.Stack()))
			err = fmt.Errorf("the plugin panicked in Serve (its log has the stack): %v", v)
		}
	}()
	err = s.impl.Serve(s.ctx, host())
	switch {
	case s.ctx.Err() == nil && err == nil:
		return errors.New("Serve has returned, and nobody accepts connections")
	case s.ctx.Err() == nil:
		return fmt.Errorf("nobody accepts connections: %w", err)
	case err != nil:
		sdk.Logger().Error("the end of Serve", "error", err)
	}
	return nil
}

func (s *server) Drain(ctx context.Context, _ *frontendv1.DrainRequest) (*frontendv1.DrainResponse, error) {
	if err := s.drain(ctx); err != nil {
		return nil, err
	}
	return &frontendv1.DrainResponse{}, nil
}

func (s *server) drain(ctx context.Context) error {
	s.mu.Lock()
	s.draining = true
	serving := s.serving
	s.mu.Unlock()
	s.stop()
	if !serving {
		return nil
	}
	select {
	case <-s.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// finish drains before the process ends.
func (s *server) finish() {
	ctx, cancel := context.WithTimeout(context.Background(), finishTimeout)
	defer cancel()
	if err := s.drain(ctx); err != nil {
		sdk.Logger().Warn("Serve has not returned", "after", finishTimeout)
	}
}

// health reports a Serve that has returned too early.
func (s *server) health() error {
	select {
	case <-s.ended:
		return s.err
	default:
		return nil
	}
}

// Client calls a front door.
type Client interface {
	// Ready reports whether the process could take over.
	Ready(ctx context.Context) error
	// Serve makes it accept connections. It may be called again.
	Serve(ctx context.Context) error
	// Drain makes it stop accepting, and returns when it has finished what it has accepted.
	Drain(ctx context.Context) error
}

// NewClient returns the host's client of a front door. Errors are the plugin's gRPC status errors, unchanged.
func NewClient(conn grpc.ClientConnInterface) Client {
	return &client{rpc: frontendv1.NewFrontendServiceClient(conn)}
}

type client struct {
	rpc frontendv1.FrontendServiceClient
}

func (c *client) Ready(ctx context.Context) error {
	_, err := c.rpc.Ready(ctx, &frontendv1.ReadyRequest{})
	return err
}

func (c *client) Serve(ctx context.Context) error {
	_, err := c.rpc.Serve(ctx, &frontendv1.ServeRequest{})
	return err
}

func (c *client) Drain(ctx context.Context) error {
	_, err := c.rpc.Drain(ctx, &frontendv1.DrainRequest{})
	return err
}
