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
)

// CallTimeout bounds a call whose caller gave no deadline: the two minutes that a
// driver has, with its retries, and some for the way. Streams have no bound.
const CallTimeout = 150 * time.Second

// conn is a plugin's connection that says in every error whose it is.
type conn struct {
	grpc.ClientConnInterface
	prefix  string // kind(name)
	retired <-chan struct{}
	ended   <-chan struct{}
}

// errEnded: the plugin's process ended in the middle of the call.
var errEnded = errors.New("the plugin ended")

const (
	// brokenWait is how long after an error the end of its connection may be seen: of a process
	// that is stopped, the refusal of a call may come first.
	brokenWait = 50 * time.Millisecond
	// endWait is how long after a broken connection the end of the process may be seen.
	endWait = time.Second
)

// Invoke is a unary call.
func (c *conn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, CallTimeout)
		defer cancel()
	}
	return c.wrap(ctx, c.ClientConnInterface.Invoke(ctx, method, args, reply, opts...))
}

// NewStream is a streaming call. It ends when another process of the plugin takes
// over: its caller opens it anew, there.
func (c *conn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
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

// errMoved ends the streams of a process that another one has replaced.
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
	return &callError{prefix: c.prefix, err: err, ended: status.Code(err) == codes.Unavailable && c.hasEnded(ctx)}
}

// hasEnded tells a connection that broke with its process from one that is whole:
// a driver may be unavailable too.
func (c *conn) hasEnded(ctx context.Context) bool {
	if g, ok := c.ClientConnInterface.(*grpc.ClientConn); ok {
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

// callError is an error of a call to a plugin.
type callError struct {
	prefix string
	err    error
	ended  bool
}

func (e *callError) Error() string { return e.prefix + ": " + status.Convert(e.err).Message() }

func (e *callError) Unwrap() error { return e.err }

// GRPCStatus keeps the code and the details, for status.FromError.
func (e *callError) GRPCStatus() *status.Status {
	p := status.Convert(e.err).Proto()
	p.Message = e.Error()
	return status.FromProto(p)
}

// Is makes the end of a caller's context, which gRPC turns into a status, known
// by its own name again.
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
