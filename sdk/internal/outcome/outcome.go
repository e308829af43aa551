// Package outcome turns the end of a plugin's call into the error that its host gets.
package outcome

import (
	"context"
	"errors"
	"runtime/debug"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Status gives an error a code: its own if it has one, else Internal. nil stays nil.
func Status(err error) error {
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

// Rescue turns a panic in one call into that call's error, so that the process's other calls continue. It must be
// deferred itself.
func Rescue(log hclog.Logger, method string, err *error) {
	if v := recover(); v != nil {
		log.Error("panic in a call", "method", method, "panic", v, "stack", string(debug.Stack()))
		*err = status.Errorf(codes.Internal, "the plugin panicked in %s (its log has the stack): %v", method, v)
	}
}
