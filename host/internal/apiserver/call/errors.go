package call

import (
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/internal/errcode"
	"github.com/pannier/pannier/internal/printable"
)

// WithCode adds the code that API clients see to the error of a call. Errors of drivers keep their code.
func WithCode(ctx context.Context, err error) error {
	switch {
	case err == nil, errors.As(err, new(*connect.Error)):
		return err
	case CodeOf(err) == connect.CodeCanceled && errors.Is(context.Cause(ctx), ErrStopping):
		return connect.NewError(connect.CodeUnavailable, fmt.Errorf("%w: %w", ErrStopping, err))
	default:
		return connect.NewError(CodeOf(err), plain(err))
	}
}

// plain leaves gRPC's words out of an error's text.
func plain(err error) error {
	if text := printable.Sentence(err.Error()); text != err.Error() {
		return sentence{err, text}
	}
	return err
}

type sentence struct {
	error
	text string
}

func (s sentence) Error() string { return s.text }

func (s sentence) Unwrap() error { return s.error }

// CodeOf returns the code of an error.
func CodeOf(err error) connect.Code {
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

// Invalid returns the error of a request that can never succeed.
func Invalid(object, field, problem string) error {
	return &claim.FieldError{Object: object, Field: field, Problem: problem}
}

// ErrAlone is returned on a host that is in no cluster.
var ErrAlone = errcode.FailedPrecondition.New("this host is alone, in no cluster: its configuration has no tls block")

// ErrStopping is the cause of calls that are cancelled because the server is closed.
var ErrStopping = errcode.Unavailable.New("the agent is stopping: call again when it is back")

// CheckIDs checks the ids that a request may give, by its fields.
func CheckIDs(object string, ids map[string]string) error {
	for field, id := range ids {
		if err := claim.CheckID(id); id != "" && err != nil {
			return Invalid(object, field, err.Error())
		}
	}
	return nil
}
