package outcome

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Result is the outcome of one request of a batch, as it is sent.
type Result interface {
	GetCode() uint32
	GetMessage() string
}

// OfBatch returns the error of each result of a call that carried requests with the ids, or refuses all of them: if
// they are not those of the requests, one that has failed may pass for one that has not. what is what the ids name.
func OfBatch[R Result](call, what string, ids []string, results []R, id func(R) string) ([]error, error) {
	if len(results) != len(ids) {
		return nil, status.Errorf(codes.Internal,
			"%s: the plugin gave %d results for %d requests: report this to its author", call, len(results), len(ids))
	}
	errs := make([]error, len(ids))
	for n, r := range results {
		switch {
		case id(r) != ids[n]:
			return nil, status.Errorf(codes.Internal,
				"%s: the plugin gave the %s %q where the result of %q belongs: report this to its author", call, what, id(r),
				ids[n])
		case r.GetCode() != 0:
			errs[n] = status.Error(codes.Code(r.GetCode()), r.GetMessage())
		case r.GetMessage() != "":
			errs[n] = status.Errorf(codes.Internal, "%s: the plugin gave an error without a code: %s", call,
				r.GetMessage())
		}
	}
	return errs, nil
}
