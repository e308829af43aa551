package sdk

import (
	"context"
	"errors"
	"runtime/debug"
	"strings"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
	"github.com/pannier/pannier/sdk/wire"
)

// interceptor wraps every call of every service.
type interceptor struct {
	log    hclog.Logger
	life   *lifetime
	relays bool // it passes streams on to another process, which ends them
}

func (i *interceptor) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler,
) (resp any, err error) {
	end, ok := i.life.begin()
	if !ok {
		return nil, errStopping
	}
	defer end()
	defer rescue(i.log, info.FullMethod, &err)
	resp, err = handler(traced(ctx), req)
	if errors.As(err, new(*relayed)) {
		_ = grpc.SetTrailer(ctx, metadata.Pairs(wire.RelayedKey, "true")) // fails only if the caller is gone
	}
	return resp, withCode(err)
}

// Relayed marks an error as that of what the plugin talks to, such as a driver that refuses a call or does not answer
// it. Such errors, whatever their code, do not count for the health of the plugin.
func Relayed(err error) error {
	if err == nil {
		return nil
	}
	return &relayed{err}
}

type relayed struct{ error }

func (r *relayed) Unwrap() error { return r.error }

// GRPCStatus keeps the code of the error.
func (r *relayed) GRPCStatus() *status.Status { return status.Convert(r.error) }

// errStopping is the error of new calls, and of streams, while the process is stopping.
var errStopping = status.Error(codes.Unavailable, "the plugin is stopping")

func (i *interceptor) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo,
	handler grpc.StreamHandler,
) (err error) {
	if info.FullMethod == pluginv1.EventService_Events_FullMethodName ||
		info.FullMethod == pluginv1.HostService_Connect_FullMethodName && !i.relays {
		defer rescue(i.log, info.FullMethod, &err) // they end last, by themselves
		return withCode(handler(srv, ss))
	}
	// go-plugin's own streams end with their client only, and would block the stop.
	ofGoPlugin := strings.HasPrefix(info.FullMethod, "/plugin.")
	if !ofGoPlugin {
		end, ok := i.life.begin()
		if !ok {
			return errStopping
		}
		defer end()
	}
	ctx, cancel := context.WithCancel(traced(ss.Context()))
	defer cancel()
	done := make(chan struct{})
	var result error // the handler's; read once done is closed
	go func() {
		defer close(done)
		defer rescue(i.log, info.FullMethod, &result)
		result = handler(srv, &boundStream{ServerStream: ss, ctx: ctx})
	}()
	select {
	case <-done:
		return withCode(result)
	case <-i.life.stopping:
	}
	cancel()
	if !ofGoPlugin {
		<-done // the process must not end under the call
	}
	return errStopping
}

// boundStream is a stream whose context ends when the plugin stops.
type boundStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *boundStream) Context() context.Context { return s.ctx }

// withCode gives an error a code: its own if it has one, else Internal. nil stays nil.
func withCode(err error) error {
	if err == nil {
		return nil
	}
	if s, ok := status.FromError(err); ok {
		return s.Err()
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return status.FromContextError(err).Err()
	}
	return status.Error(codes.Internal, err.Error())
}

// rescue turns a panic in one call into that call's error, so that the process's other calls continue. It must be
// deferred itself.
func rescue(log hclog.Logger, method string, err *error) {
	if v := recover(); v != nil {
		log.Error("panic in a call", "method", method, "panic", v, "stack", string(debug.Stack()))
		*err = status.Errorf(codes.Internal, "the plugin panicked in %s (its log has the stack): %v", method, v)
	}
}
