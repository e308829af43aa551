package tokens

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
)

// codedError is an error of the authority itself, with a gRPC code like those that come
// from a plugin.
type codedError struct {
	code codes.Code
	err  error
}

func (e *codedError) Error() string { return e.err.Error() }

func (e *codedError) Unwrap() error { return e.err }

// GRPCStatus tells the code, for status.FromError.
func (e *codedError) GRPCStatus() *status.Status { return status.New(e.code, e.Error()) }

func coded(code codes.Code, err error) error { return &codedError{code, err} }

// otherPurpose: whoever asks for t, or for its end, is not whom it was noted for.
func otherPurpose(t claim.Token) error {
	return coded(codes.PermissionDenied, fmt.Errorf("the ledger has noted the id %s for something else", t.ID))
}

// ledgerError gives an error of the ledger the code that says whether another try is
// worth it.
func ledgerError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, cluster.ErrNotLeader), errors.Is(err, cluster.ErrUncertain), errors.Is(err, cluster.ErrClosed):
		return coded(codes.Unavailable, err)
	case errors.Is(err, cluster.ErrDiskFull):
		return coded(codes.ResourceExhausted, err)
	case errors.Is(err, cluster.ErrNotRunning), errors.Is(err, cluster.ErrConflict), errors.Is(err, cluster.ErrTokenNotFound):
		return coded(codes.FailedPrecondition, err)
	case errors.Is(err, cluster.ErrInvalid):
		return coded(codes.InvalidArgument, err)
	default:
		return err // the end of the caller's context, or a fault
	}
}
