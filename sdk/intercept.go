package sdk

import (
	"context"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/internal/outcome"
	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
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
	defer outcome.Rescue(i.log, info.FullMethod, &err)
	resp, err = handler(traced(ctx), req)
	return resp, outcome.Status(err)
}

// errStopping is the error of new calls, and of streams, while the process is stopping.
var errStopping = status.Error(codes.Unavailable, "the plugin is stopping")

func (i *interceptor) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo,
	handler grpc.StreamHandler,
) (err error) {
	if info.FullMethod == pluginv1.EventService_Events_FullMethodName ||
		info.FullMethod == pluginv1.HostService_Connect_FullMethodName && !i.relays {
		defer outcome.Rescue(i.log, info.FullMethod, &err) // they end last, by themselves
		return outcome.Status(handler(srv, ss))
	}
	end, ok := i.life.begin()
	if !ok {
		return errStopping
	}
	defer end()
	ctx, cancel := context.WithCancel(traced(ss.Context()))
	defer cancel()
	done := make(chan struct{})
	var result error // the handler's; read once done is closed
	go func() {
		defer close(done)
		defer outcome.Rescue(i.log, info.FullMethod, &result)
		result = handler(srv, &boundStream{ServerStream: ss, ctx: ctx})
	}()
	select {
	case <-done:
		return outcome.Status(result)
	case <-i.life.stopping:
	}
	cancel()
	<-done // the process must not end under the call
	return errStopping
}

// boundStream is a stream whose context ends when the plugin stops.
type boundStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *boundStream) Context() context.Context { return s.ctx }
