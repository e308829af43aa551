package catalog

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
)

// CallTimeout bounds a call whose caller set no deadline: the two minutes that a driver has, retries included, and
// some time for the way there and back. Streams have no bound.
const CallTimeout = 150 * time.Second

// conn is a connection to a plugin that names the plugin in every error.
type conn struct {
	grpc.ClientConnInterface
	prefix  string // kind(name)
	retired <-chan struct{}
	ended   <-chan struct{}
}

// errEnded means that the process ended during the call, or was replaced because of it.
var errEnded = errors.New("the plugin ended")

const (
	// brokenWait is how long after an error the connection may be seen to break: a process that is being stopped
	// may refuse a call before its connection closes.
	brokenWait = 50 * time.Millisecond
	// endWait is how long after its connection broke the process may be seen to end.
	endWait = time.Second
)

// Invoke makes a unary call.
func (c *conn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, CallTimeout)
		defer cancel()
	}
	return c.wrap(ctx, c.ClientConnInterface.Invoke(ctx, method, args, reply, opts...))
}

// NewStream makes a streaming call. The stream ends when another process of the plugin takes over; the caller then
// opens it again on the new process.
func (c *conn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string,
	opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	s, err := c.ClientConnInterface.NewStream(ctx, desc, method, opts...)
	if err != nil {
		defer cancel(nil)
		return nil, c.wrap(ctx, err)
	}
	go func() {
		select {
		case <-c.retired:
			cancel(errMoved)
		case <-ctx.Done():
		case <-s.Context().Done():
		}
		cancel(nil)
	}()
	return &stream{ClientStream: s, ctx: ctx, conn: c}, nil
}

// errMoved ends the streams of a process that was replaced.
var errMoved = status.Error(codes.Unavailable, "another process of the plugin has taken over")

type stream struct {
	grpc.ClientStream
	ctx  context.Context
	conn *conn
}

func (s *stream) RecvMsg(m any) error { return s.wrap(s.ClientStream.RecvMsg(m)) }

func (s *stream) SendMsg(m any) error { return s.wrap(s.ClientStream.SendMsg(m)) }

func (s *stream) wrap(err error) error {
	if err != nil && errors.Is(context.Cause(s.ctx), errMoved) {
		err = errMoved
	}
	return s.conn.wrap(s.ctx, err)
}

func (c *conn) wrap(ctx context.Context, err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	ended := errors.Is(err, supervisor.ErrReplaced) || status.Code(err) == codes.Unavailable && c.hasEnded(ctx)
	return &callError{prefix: c.prefix, err: err, ended: ended}
}

// hasEnded reports whether the call failed because the process ended. The code Unavailable does not prove that, since a
// driver may be unavailable too.
func (c *conn) hasEnded(ctx context.Context) bool {
	if g, ok := c.ClientConnInterface.(interface {
		GetState() connectivity.State
		WaitForStateChange(ctx context.Context, from connectivity.State) bool
	}); ok {
		ctx, cancel := context.WithTimeout(ctx, brokenWait)
		defer cancel()
		if g.GetState() == connectivity.Ready && !g.WaitForStateChange(ctx, connectivity.Ready) {
			return false
		}
	}
	select {
	case <-c.ended:
		return true
	case <-time.After(endWait):
		return false
	}
}

// callError is the error of a call to a plugin.
type callError struct {
	prefix string
	err    error
	ended  bool
}

func (e *callError) Error() string { return e.prefix + ": " + status.Convert(e.err).Message() }

func (e *callError) Unwrap() error { return e.err }

// GRPCStatus keeps the code and the details for status.FromError.
func (e *callError) GRPCStatus() *status.Status {
	p := status.Convert(e.err).Proto()
	p.Message = e.Error()
	return status.FromProto(p)
}

// Is lets errors.Is find context.Canceled and context.DeadlineExceeded again, which gRPC turned into a status.
func (e *callError) Is(target error) bool {
	switch target {
	case errEnded:
		return e.ended
	case context.Canceled:
		return status.Code(e.err) == codes.Canceled
	case context.DeadlineExceeded:
		return status.Code(e.err) == codes.DeadlineExceeded
	default:
		return false
	}
}
