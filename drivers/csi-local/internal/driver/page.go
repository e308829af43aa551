package driver

import (
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// page cuts one page out of ids, which are in ascending order. A token is the
// last id of the page before: it stays good when that item is deleted. limit 0
// is no limit. The error is a status; a token that could not be an id is
// Aborted, as the specification wants it.
func page(ids []string, token string, limit int32, isID func(string) bool) (entries []string, next string, err error) {
	if limit < 0 {
		return nil, "", status.Errorf(codes.InvalidArgument, "max_entries is %d: it must not be negative", limit)
	}
	if token != "" {
		if !isID(token) {
			return nil, "", status.Error(codes.Aborted, "starting_token is not one of this driver's: list again without one")
		}
		at, found := slices.BinarySearch(ids, token)
		if found {
			at++
		}
		ids = ids[at:]
	}
	if limit > 0 && len(ids) > int(limit) {
		return ids[:limit], ids[limit-1], nil
	}
	return ids, "", nil
}
