// Package refusal has the codes with which a plugin refuses a call for certain (sdk/identity, sdk/registration): it
// has made nothing, so the host undoes nothing, and repeating the call changes nothing.
package refusal

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Is reports that a code is one of them.
func Is(code codes.Code) bool {
	switch code {
	case codes.InvalidArgument, codes.FailedPrecondition, codes.PermissionDenied, codes.Unauthenticated:
		return true
	default:
		return false
	}
}

// AfterEffect gives a refusal the code Internal, because something was made before it, which the host must undo. Any
// other error stays as it is.
func AfterEffect(err error) error {
	if s := status.Convert(err); Is(s.Code()) {
		return status.Error(codes.Internal, s.Message())
	}
	return err
}
