package apiserver

import (
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/internal/errcode"
)

// withCode adds the code that API clients see to the error of a call. Errors of drivers keep their code.
func withCode(ctx context.Context, err error) error {
	switch {
	case err == nil, errors.As(err, new(*connect.Error)):
		return err
	case codeOf(err) == connect.CodeCanceled && errors.Is(context.Cause(ctx), errStopping):
		return connect.NewError(connect.CodeUnavailable, fmt.Errorf("%w: %w", errStopping, err))
	default:
		return connect.NewError(codeOf(err), err)
	}
}

func codeOf(err error) connect.Code {
	if c, ok := errcode.Of(err); ok {
		return connect.Code(c)
	}
	if s, ok := status.FromError(err); ok && s.Code() != codes.OK {
		return connect.Code(s.Code()) // the numbers are the same
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return connect.CodeDeadlineExceeded
	case errors.Is(err, context.Canceled):
		return connect.CodeCanceled
	default:
		return connect.CodeUnknown
	}
}

// invalid returns the error of a request that can never succeed.
func invalid(object, field, problem string) error {
	return &claim.FieldError{Object: object, Field: field, Problem: problem}
}
