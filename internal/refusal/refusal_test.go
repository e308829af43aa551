package refusal_test

import (
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/internal/refusal"
)

func TestAfterEffect(t *testing.T) {
	for code, want := range map[codes.Code]codes.Code{
		codes.InvalidArgument: codes.Internal, codes.FailedPrecondition: codes.Internal,
		codes.PermissionDenied: codes.Internal, codes.Unauthenticated: codes.Internal,
		codes.Unavailable: codes.Unavailable, codes.NotFound: codes.NotFound, codes.Aborted: codes.Aborted,
	} {
		err := refusal.AfterEffect(fmt.Errorf("register: %w", status.Error(code, "no")))
		if got := status.Code(err); got != want || status.Convert(err).Message() != "register: rpc error: code = "+
			code.String()+" desc = no" {
			t.Errorf("AfterEffect of %v: %v, want code %v and the same message", code, err, want)
		}
		if refusal.Is(status.Code(err)) {
			t.Errorf("AfterEffect of %v is a refusal: %v", code, err)
		}
	}
	if cause := errors.New("died"); !errors.Is(refusal.AfterEffect(cause), cause) {
		t.Error("an error that is no refusal lost its cause")
	}
	if err := refusal.AfterEffect(nil); err != nil {
		t.Errorf("AfterEffect of nothing: %v", err)
	}
}
