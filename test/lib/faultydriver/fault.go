package faultydriver

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Fault changes what one call does.
type Fault struct {
	name   string
	change func(req proto.Message) // before the work; may be nil
	run    func(ctx context.Context, d *Driver, do func() (any, error)) (any, error)
}

func (f Fault) String() string { return f.name }

// OK succeeds; it is used between two faults of a script.
func OK() Fault {
	return Fault{name: "ok", run: func(_ context.Context, _ *Driver, do func() (any, error)) (any, error) { return do() }}
}

// Code answers with a status without doing the work.
func Code(code codes.Code, message string) Fault {
	return Fault{name: "code " + code.String(), run: func(context.Context, *Driver, func() (any, error)) (any, error) {
		return nil, status.Error(code, message)
	}}
}

// Hang does nothing until the caller disconnects or the driver stops.
func Hang() Fault {
	return Fault{name: "hang", run: func(ctx context.Context, _ *Driver, _ func() (any, error)) (any, error) {
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	}}
}

// Delay waits, and then does the work unless the caller has disconnected.
func Delay(d time.Duration) Fault {
	return Fault{name: "delay " + d.String(), run: func(ctx context.Context, _ *Driver, do func() (any, error)) (any, error) {
		select {
		case <-time.After(d):
			return do()
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}}
}

// Until does the work when release is closed.
func Until(release <-chan struct{}) Fault {
	return Fault{name: "until", run: func(ctx context.Context, _ *Driver, do func() (any, error)) (any, error) {
		select {
		case <-release:
			return do()
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}}
}

// Watched does the work. It calls before when the call arrives, and after when the work is done, before the
// answer.
func Watched(before, after func()) Fault {
	return Fault{name: "watched", run: func(_ context.Context, _ *Driver, do func() (any, error)) (any, error) {
		before()
		resp, err := do()
		after()
		return resp, err
	}}
}

// Before calls f when the call arrives, and then does nothing until the caller disconnects or the driver stops.
func Before(f func()) Fault {
	return Fault{name: "before", run: func(ctx context.Context, _ *Driver, _ func() (any, error)) (any, error) {
		f()
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	}}
}

// After does the work and calls f, and then does not answer until the caller disconnects or the driver stops.
func After(f func()) Fault {
	return Fault{name: "after", run: func(ctx context.Context, _ *Driver, do func() (any, error)) (any, error) {
		_, _ = do()
		f()
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	}}
}

// Drop does the work and then closes every connection instead of answering.
func Drop() Fault {
	return Fault{name: "drop", run: func(_ context.Context, d *Driver, do func() (any, error)) (any, error) {
		_, _ = do()
		d.dropConnections()
		return nil, status.Error(codes.Unavailable, "unreachable text: the connection is closed")
	}}
}

// Crash does the work, and then the driver dies like on kill -9: it does not answer, its connections close, and
// the socket's file stays. Restart starts it again.
func Crash() Fault {
	return Fault{name: "crash", run: func(_ context.Context, d *Driver, do func() (any, error)) (any, error) {
		_, _ = do()
		d.crash()
		return nil, status.Error(codes.Unavailable, "unreachable text: the driver is dead")
	}}
}

// Changed does the work for another request than the one that came, and answers with success.
func Changed(change func(req proto.Message)) Fault {
	f := OK()
	f.name, f.change = "changed", change
	return f
}

// Panic panics in the handler; as in most drivers, an interceptor turns the panic into Internal.
func Panic(message string) Fault {
	return Fault{name: "panic", run: func(context.Context, *Driver, func() (any, error)) (any, error) {
		panic(message)
	}}
}

// Reply does the work but answers with resp.
func Reply(resp proto.Message) Fault {
	return Fault{name: "reply", run: func(_ context.Context, _ *Driver, do func() (any, error)) (any, error) {
		if _, err := do(); err != nil {
			return nil, err
		}
		return resp, nil
	}}
}

// Lie answers with resp without doing the work.
func Lie(resp proto.Message) Fault {
	return Fault{name: "lie", run: func(context.Context, *Driver, func() (any, error)) (any, error) { return resp, nil }}
}

func recovered(f func() (any, error)) (resp any, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = status.Error(codes.Internal, fmt.Sprint("panic: ", p))
		}
	}()
	return f()
}
