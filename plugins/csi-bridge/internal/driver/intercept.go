package driver

import (
	"context"
	"path"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// call is what the interceptor must know of the attempt that an RPC is part of.
type call struct {
	op      *Op
	attempt int
}

type callKey struct{}

func withCall(ctx context.Context, c *call) context.Context {
	return context.WithValue(ctx, callKey{}, c)
}

// callError is a failed RPC: how far it came, and the status that the driver,
// or gRPC on this side, gave it.
type callError struct {
	method   string
	status   *status.Status
	sent     bool // a connection took it: the driver may have seen it
	answered bool // the status is the driver's own
}

func (e *callError) Error() string              { return e.status.Message() }
func (e *callError) GRPCStatus() *status.Status { return e.status }

// uncertain says that the driver may have done the work and not said so. Its
// own DeadlineExceeded and Canceled count too: it gave up on something that may
// still be going on behind it.
func (e *callError) uncertain() bool {
	code := e.status.Code()
	return e.sent && (!e.answered || code == codes.DeadlineExceeded || code == codes.Canceled)
}

// intercept sees every RPC on the connection: it writes its log line and gives
// its error the form that Do needs. An RPC made outside Do, which would have no
// deadline, is refused.
func (c *Conn) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	info, ok := ctx.Value(callKey{}).(*call)
	if !ok {
		return status.Errorf(codes.Internal, "%s was called outside Do", path.Base(method))
	}
	var (
		to              peer.Peer
		header, trailer metadata.MD
		started         = time.Now()
	)
	err := invoke(ctx, method, req, reply, cc, append(opts, grpc.Peer(&to), grpc.Header(&header), grpc.Trailer(&trailer))...)
	c.logCall(info, method, req, reply, err, time.Since(started))
	if err == nil {
		return nil
	}
	return &callError{
		method: method,
		status: status.Convert(err),
		sent:   to.Addr != nil,
		// Every answer has a content-type, in its header or, without a body, in its
		// trailer; a status that gRPC made up on this side has neither.
		answered: len(header)+len(trailer) > 0,
	}
}
