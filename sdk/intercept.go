package sdk

import (
	"context"
	"os"
	"strings"
	"sync"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
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
	stdio  sync.Once
	relays bool // it passes streams on to another process, which ends them
}

func (i *interceptor) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler,
) (resp any, err error) {
	i.stdio.Do(keepOutput)
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
	i.stdio.Do(keepOutput)
	if info.FullMethod == pluginv1.EventService_Events_FullMethodName ||
		info.FullMethod == pluginv1.HostService_Connect_FullMethodName && !i.relays {
		defer outcome.Rescue(i.log, info.FullMethod, &err) // they end last, by themselves
		return outcome.Status(handler(srv, ss))
	}
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
		defer outcome.Rescue(i.log, info.FullMethod, &result)
		result = handler(srv, &boundStream{ServerStream: ss, ctx: ctx})
	}()
	select {
	case <-done:
		return outcome.Status(result)
	case <-i.life.stopping:
	}
	cancel()
	if !ofGoPlugin { // go-plugin's streams end only with their client, and would block the stop
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

// keepOutput sends what the plugin prints to the host's log file. go-plugin has replaced os.Stdout and os.Stderr
// by pipes that it empties only while a host is connected, so a plugin that prints without a host would block
// forever. File descriptor 1 is the pipe that carried the handshake; its reader dies with the host, and a write to
// it would then kill the process.
//
// It runs in the first call, because go-plugin replaces the two just before it serves.
func keepOutput() {
	os.Stdout, os.Stderr = stderr, stderr
	_ = unix.Dup3(2, 1, 0)
}
